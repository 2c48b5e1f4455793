# For the scripts beside it: mounts a file system on $work/mnt and ends that again.
#
# GANNET_ON=memory (the default): the in-memory file system, served by examples/mount_memfs. GANNET_ON=volume: a volume of
# GANNET_SIZE (512M) in /dev/shm, served by `gannet mount`, and checked by `gannet fsck` afterwards.
# In a mount namespace of its own: other programs take no copies of its mounts into theirs, which would keep servers alive.
[ -n "${GANNET_APART:-}" ] || [ "$(id -u)" != 0 ] || exec env GANNET_APART=1 unshare --mount "$0" "$@"
workspace=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
on=${GANNET_ON:-memory}
server=
volume=

# Builds what serves, and makes $work with $work/mnt.
prepare() {
    if [ "$on" = volume ]; then
        gannet=${GANNET:-$workspace/target/release/gannet}
        [ -n "${GANNET:-}" ] || (cd "$workspace" && cargo build --quiet --release -p gannet-cli)
    else
        (cd "$workspace" && cargo build --quiet --release -p gannet-fuse --example mount_memfs)
    fi
    work=$(mktemp -d "/tmp/gannet-$1.XXXXXX")
    chmod 755 "$work"
    mkdir "$work/mnt"
    trap cleanup EXIT
}

cleanup() {
    umount -q -l "$work"/* 2>/dev/null || true
    [ -z "$server" ] || { kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; } || true
    [ -z "$volume" ] || rm -f "$volume"
    rm -rf "$work"
}

# serve OPTIONS: mounts an empty file system. False if it does not come up.
serve() {
    if [ "$on" = volume ]; then
        volume=/dev/shm/$(basename "$work")
        "$gannet" mkfs --force --size "${GANNET_SIZE:-512M}" "$volume" > /dev/null
        "$gannet" mount --foreground -o "$1" "$volume" "$work/mnt" > "$work/server.log" 2>&1 &
    else
        "$workspace/target/release/examples/mount_memfs" "$work/mnt" "$1" > "$work/server.log" 2>&1 &
    fi
    server=$!
    for _ in $(seq 600); do mountpoint -q "$work/mnt" && [ -s "$work/server.log" ] && return; kill -0 $server 2> /dev/null || break; sleep 0.1; done
    echo "$1: not mounted: $(cat "$work/server.log")"
    return 1
}

# Unmounts; a volume must be sound then.
end() {
    umount "$work/mnt"
    wait "$server"
    server=
    if [ "$on" = volume ]; then
        "$gannet" fsck "$volume" > "$work/fsck" || { cat "$work/fsck"; return 1; }
    fi
}
