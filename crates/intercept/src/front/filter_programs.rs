//! What a filter of system calls says of a call: its program, executed here as the kernel executes it.
//!
//! Only what `seccomp` takes: classic BPF whose loads are of aligned words of `struct seccomp_data`. What the kernel would refuse to install lets
//! nothing through here.

/// One instruction, `struct sock_filter`.
pub(crate) const INSTRUCTION_BYTES: usize = 8;
/// As many has the longest program.
pub(crate) const INSTRUCTIONS_MAX: usize = 4096;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const CELLS: usize = 16;

/// Whether a filter lets a call through without a trace that the program could see. `program` is its instructions' bytes.
pub(crate) fn lets_through(program: &[u8], number: usize, arguments: [u64; 6]) -> bool {
    const SECCOMP_RET_ACTION_FULL: u32 = 0xffff_0000;
    const SECCOMP_RET_LOG: u32 = 0x7ffc_0000;
    const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;
    let mut data = [0u32; 16];
    (data[0], data[1]) = (number as u32, AUDIT_ARCH_X86_64);
    for (index, argument) in arguments.into_iter().enumerate() {
        (data[4 + 2 * index], data[5 + 2 * index]) = (argument as u32, (argument >> 32) as u32);
    }
    let action = execute(program, &data).map(|value| value & SECCOMP_RET_ACTION_FULL);
    matches!(action, Some(SECCOMP_RET_LOG | SECCOMP_RET_ALLOW))
}

/// What the program returns; `None` for none that the kernel would take. Jumps lead forwards only, so it ends.
fn execute(program: &[u8], data: &[u32; 16]) -> Option<u32> {
    const USES_X: u16 = 0x08;
    let (mut a, mut x, mut cells) = (0u32, 0u32, [0u32; CELLS]);
    let mut at = 0usize;
    loop {
        let bytes = program.get(at * INSTRUCTION_BYTES..(at + 1) * INSTRUCTION_BYTES)?;
        let code = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let (if_so, if_not) = (usize::from(bytes[2]), usize::from(bytes[3]));
        let k = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let operand = if code & USES_X != 0 { x } else { k };
        at += 1;
        match code {
            // Loads: of the data, its length, a number, a cell.
            0x20 => a = *data.get(k as usize / 4).filter(|_| k % 4 == 0)?,
            0x80 => a = size_of_val(data) as u32,
            0x81 => x = size_of_val(data) as u32,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *cells.get(k as usize)?,
            0x61 => x = *cells.get(k as usize)?,
            // Stores, and moves between the registers.
            0x02 => *cells.get_mut(k as usize)? = a,
            0x03 => *cells.get_mut(k as usize)? = x,
            0x07 => x = a,
            0x87 => a = x,
            // Arithmetic.
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            // The kernel ends a program that divides by zero with zero.
            0x34 | 0x3c => match a.checked_div(operand) {
                Some(quotient) => a = quotient,
                None => return Some(0),
            },
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            // Jumps.
            0x05 => at = at.checked_add(k as usize)?,
            0x15 | 0x1d => at += if a == operand { if_so } else { if_not },
            0x25 | 0x2d => at += if a > operand { if_so } else { if_not },
            0x35 | 0x3d => at += if a >= operand { if_so } else { if_not },
            0x45 | 0x4d => at += if a & operand != 0 { if_so } else { if_not },
            // Ends.
            0x06 => return Some(k),
            0x16 => return Some(a),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(instructions: &[(u16, u8, u8, u32)]) -> Vec<u8> {
        let bytes = instructions.iter().flat_map(|&(code, if_so, if_not, k)| {
            let ([c0, c1], [k0, k1, k2, k3]) = (code.to_ne_bytes(), k.to_ne_bytes());
            [c0, c1, if_so, if_not, k0, k1, k2, k3]
        });
        bytes.collect()
    }

    const ALLOW: u32 = 0x7fff_0000;
    const ERROR: u32 = 0x0005_0001;

    #[test]
    fn a_list_of_what_is_allowed_is_asked_by_number() {
        let list = program(&[(0x20, 0, 0, 0), (0x15, 0, 1, 3), (0x06, 0, 0, ALLOW), (0x06, 0, 0, 0x8000_0000)]);
        assert!(lets_through(&list, 3, [0; 6]));
        assert!(!lets_through(&list, 4, [0; 6]));
    }

    #[test]
    fn arguments_count_with_both_halves() {
        // Allowed if the third argument's upper half is 1 and the lower one has bit 2, tried in a roundabout way.
        let list = program(&[
            (0x20, 0, 0, 36),
            (0x02, 0, 0, 5),
            (0x61, 0, 0, 5),
            (0x00, 0, 0, 1),
            (0x1d, 0, 3, 0),
            (0x20, 0, 0, 32),
            (0x45, 0, 1, 4),
            (0x06, 0, 0, ALLOW),
            (0x06, 0, 0, ERROR),
        ]);
        assert!(lets_through(&list, 9, [0, 0, 1 << 32 | 4, 0, 0, 0]));
        assert!(!lets_through(&list, 9, [0, 0, 1 << 32 | 3, 0, 0, 0]));
        assert!(!lets_through(&list, 9, [0, 0, 4, 0, 0, 0]));
    }

    #[test]
    fn what_is_no_program_lets_nothing_through() {
        for bad in [&[][..], &[(0x20, 0, 0, 0)], &[(0x05, 0, 0, u32::MAX)], &[(0x28, 0, 0, 0), (0x06, 0, 0, ALLOW)]] {
            assert!(!lets_through(&program(bad), 1, [0; 6]), "{bad:?}");
        }
        assert!(!lets_through(&program(&[(0x20, 0, 0, 64), (0x06, 0, 0, ALLOW)]), 1, [0; 6]));
    }
}
