//! The bytes that a jump replaces: which instructions around a `syscall`, and how they read elsewhere.

use super::image::Image;
use super::landings::AddressSet;
use super::{AFTER_BYTES_MAX, BEFORE_BYTES_MAX, FIXUP_AFTER, FIXUPS_MAX, FLAG_ENDS, Fixup, Site, WINDOW_BYTES_MAX};
use iced_x86::{Code, FlowControl, Instruction};

/// Chooses the instructions to replace around the `syscall` at `index`.
pub(super) fn choose_window(
    image: &Image,
    listing: &[Instruction],
    index: usize,
    landings: &AddressSet,
    number: i16,
) -> Option<Site> {
    // Fewest instructions in front of the call first: then the code behind the jump back starts a basic block most often.
    for before in 0..=index.min(3) {
        for after in 0..4 {
            let (first, last) = (index - before, index + after);
            let Some(end_instruction) = listing.get(last) else { break };
            let start = listing[first].ip() as usize;
            let window = end_instruction.next_ip() as usize - start;
            if window < 5 {
                continue;
            }
            if window > WINDOW_BYTES_MAX {
                break;
            }
            if let Some(site) = relocate(image, &listing[first..=last], before, landings, number) {
                return Some(site);
            }
        }
    }
    None
}

/// Relocates the instructions of a window, the `syscall` being at `position`.
fn relocate(
    image: &Image,
    window: &[Instruction],
    position: usize,
    landings: &AddressSet,
    number: i16,
) -> Option<Site> {
    let start = window[0].ip() as usize;
    let end = window[window.len() - 1].next_ip() as usize;
    if (start + 1..end).any(|address| landings.contains(address)) {
        return None;
    }
    let mut site = Site::unpatchable(start as u32, number);
    site.window = (end - start) as u8;
    site.original[..end - start].copy_from_slice(image.bytes(start, end - start)?);
    site.syscall_offset = (window[position].ip() as usize - start) as u8;
    for (index, instruction) in window.iter().enumerate() {
        if index == position {
            continue;
        }
        let last = index + 1 == window.len();
        let behind = index > position;
        let bytes = image.bytes(instruction.ip() as usize, instruction.len())?;
        let mut code = [0u8; 16];
        let mut length = bytes.len();
        code[..length].copy_from_slice(bytes);
        let mut displacement: Option<(usize, usize)> = None;
        match instruction.flow_control() {
            FlowControl::Next => {
                if instruction.is_invalid() || instruction.code() == Code::Syscall {
                    return None;
                }
                if instruction.is_ip_rel_memory_operand() {
                    let target = instruction.ip_rel_memory_address() as usize;
                    let at = displacement_position(bytes, instruction, target)?;
                    displacement = Some((at, target));
                }
            }
            FlowControl::ConditionalBranch if behind => {
                let target = instruction.near_branch64() as usize;
                match bytes {
                    [condition @ 0x70..=0x7f, _] => {
                        code[..2].copy_from_slice(&[0x0f, condition + 0x10]);
                        length = 6;
                    }
                    [0x0f, 0x80..=0x8f, ..] if bytes.len() == 6 => {}
                    _ => return None,
                }
                displacement = Some((2, target));
            }
            FlowControl::UnconditionalBranch if behind && last => {
                let target = instruction.near_branch64() as usize;
                match bytes {
                    [0xeb, _] | [0xe9, _, _, _, _] => code[0] = 0xe9,
                    _ => return None,
                }
                length = 5;
                displacement = Some((1, target));
                site.flags |= FLAG_ENDS;
            }
            FlowControl::Return if behind && last && bytes == [0xc3] => site.flags |= FLAG_ENDS,
            _ => return None,
        }
        let (array, used, base): (&mut [u8], &mut u8, u8) = if behind {
            (&mut site.after[..AFTER_BYTES_MAX], &mut site.after_length, FIXUP_AFTER)
        } else {
            (&mut site.before[..BEFORE_BYTES_MAX], &mut site.before_length, 0)
        };
        let at = *used as usize;
        if at + length > array.len() {
            return None;
        }
        array[at..at + length].copy_from_slice(&code[..length]);
        *used = (at + length) as u8;
        if let Some((offset, target)) = displacement {
            if site.fixup_count as usize == FIXUPS_MAX {
                return None;
            }
            site.fixups[site.fixup_count as usize] = Fixup {
                position: base + (at + offset) as u8,
                end: base + (at + length) as u8,
                reserved: 0,
                target: u32::try_from(target).ok()?,
            };
            site.fixup_count += 1;
        }
    }
    site.is_well_formed().then_some(site)
}

/// Where in `bytes` the 32-bit displacement that leads to `target` stands.
fn displacement_position(bytes: &[u8], instruction: &Instruction, target: usize) -> Option<usize> {
    let wanted = (target as i64).wrapping_sub(instruction.next_ip() as i64);
    let wanted = i32::try_from(wanted).ok()?.to_le_bytes();
    let mut found = None;
    for at in 2..=bytes.len().checked_sub(4)? {
        if bytes[at..at + 4] == wanted {
            // Two places could hold it (an immediate of the same value): then it is not certain.
            if found.is_some() {
                return None;
            }
            found = Some(at);
        }
    }
    found
}
