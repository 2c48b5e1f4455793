//! A program or library of a volume as a memory file, since the kernel executes nothing that it does not know.

use crate::front::{Front, limits};
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_usermem::Destination;
use gannet_vfs::{Errno, NodeId};

/// A copy of a program of a volume that the kernel can execute.
pub(crate) fn memory_file(front: &Front, mount: usize, node: NodeId, name: &str) -> Result<i32, Errno> {
    const MFD_CLOEXEC: usize = 1;
    const MFD_EXEC: usize = 0x10;
    const STEP_BYTES: usize = 1 << 20;
    let fs = front.file_system(mount)?;
    let size = fs.attributes(node).map_err(|error| error.errno())?.size_bytes;
    let _lifted = limits::Lifted::to(size)?;
    let name = format!("{name}\0");
    let name = name.as_ptr() as usize;
    // SAFETY: a string that ends in zero.
    let mut descriptor = unsafe { syscall(MEMFD_CREATE, [name, MFD_CLOEXEC | MFD_EXEC]) };
    if is_error(descriptor) {
        // A kernel before 6.3.
        // SAFETY: as above.
        descriptor = unsafe { syscall(MEMFD_CREATE, [name, MFD_CLOEXEC]) };
    }
    if is_error(descriptor) {
        return Err(Errno::from_raw_os_error(-descriptor as i32));
    }
    let mut buffer = vec![0u8; STEP_BYTES];
    let mut offset = 0;
    loop {
        let result = fs.read(node, offset, &mut Destination::from_slice(&mut buffer));
        let count = match result {
            Ok(0) => return Ok(descriptor as i32),
            Ok(count) => count,
            Err(error) => {
                // SAFETY: the descriptor made above.
                unsafe { syscall(CLOSE, [descriptor as usize]) };
                return Err(error.errno());
            }
        };
        let arguments = [descriptor as usize, buffer.as_ptr() as usize, count, offset as usize];
        // SAFETY: our own buffer and descriptor.
        let written = unsafe { syscall(PWRITE64, arguments) };
        if written != count as isize {
            // SAFETY: the descriptor made above.
            unsafe { syscall(CLOSE, [descriptor as usize]) };
            return Err(if is_error(written) { Errno::from_raw_os_error(-written as i32) } else { Errno::NOMEM });
        }
        offset += count as u64;
    }
}
