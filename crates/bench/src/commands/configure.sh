# What the shell scripts made by autoconf do, over and over: small files written, compared, searched, edited and moved, each by a
# program of its own. $1 is a directory, $2 the number of checks.
set -e
rm -rf "$1"
mkdir -p "$1"
cd "$1"
echo '/* confdefs.h */' > confdefs.h
check=0
while [ $check -lt "$2" ]; do
    name=`echo "function $check" | sed 'y/abcdefghijklmnopqrstuvwxyz /ABCDEFGHIJKLMNOPQRSTUVWXYZ_/'`
    cat confdefs.h - > conftest.c <<END
#define innocuous_$check innocuous
char function_$check (void);
int main (void) { return function_$check (); }
END
    sed -n 's/^char \(function_[0-9]*\).*/\1/p' conftest.c > conftest.out
    if grep "function_$check" conftest.out > /dev/null; then
        echo "#define HAVE_$name 1" >> confdefs.h
    fi
    expr $check + 1 > conftest.number
    cp conftest.c conftest.copy
    cmp -s conftest.c conftest.copy || exit 1
    mv conftest.copy conftest.last
    check=`cat conftest.number`
    rm -f conftest.c conftest.out conftest.number
done
test "`grep -c '^#define HAVE_' confdefs.h`" = "$2"
sort confdefs.h > config.h
cd /
rm -r "$1"
