//! Where jumps land: what must not be in the middle of bytes that are replaced.
//!
//! Only text and tables of the object are read, and only what is near a `syscall` is noted.

use super::build::{NEIGHBOURHOOD_BYTES, guessed_range};
use super::image::{Image, u32_at, u64_at};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

/// Bound on the entries read from something that looks like a jump table.
const JUMP_TABLE_ENTRIES_MAX: usize = 1024;

/// A set of addresses relative to the load address.
pub(super) struct AddressSet {
    words: Vec<u64>,
}

impl AddressSet {
    pub(super) fn new(limit: usize) -> Self {
        Self { words: vec![0; limit / 64 + 1] }
    }
    pub(super) fn insert(&mut self, address: usize) {
        if let Some(word) = self.words.get_mut(address / 64) {
            *word |= 1 << (address % 64);
        }
    }
    pub(super) fn contains(&self, address: usize) -> bool {
        self.words.get(address / 64).is_some_and(|word| word & (1 << (address % 64)) != 0)
    }
}

/// Marks what long branches anywhere in the text lead to near a candidate. Found by their bytes; what such bytes belong to is then
/// disassembled, so that only branches count.
pub(super) fn mark_far_branches(image: &Image, near: &AddressSet, landings: &mut AddressSet) {
    let mut listed = (0..0, Vec::<Instruction>::new());
    for segment in image.segments().iter().filter(|segment| segment.executable) {
        let Some(text) = image.bytes(segment.start, segment.length) else { continue };
        for (offset, window) in text.windows(6).enumerate() {
            let skip = match window {
                [0xe8 | 0xe9, ..] => 1,
                [0x0f, 0x80..=0x8f, ..] => 2,
                _ => continue,
            };
            let distance = u32_at(window, skip) as i32 as isize;
            let source = segment.start + offset;
            let target = (source + skip + 4).wrapping_add_signed(distance);
            if near.contains(target) && !landings.contains(target) && is_instruction(image, source, &mut listed) {
                landings.insert(target);
            }
        }
    }
}

/// Whether an instruction starts at `address`, as far as can be told. `listed` keeps what was disassembled for the next question.
fn is_instruction(image: &Image, address: usize, listed: &mut (core::ops::Range<usize>, Vec<Instruction>)) -> bool {
    if !listed.0.contains(&address) {
        let known = image.function_before(address).filter(|function| address < function.start + function.length);
        let range = known.map(|function| (function.start, function.length)).or_else(|| guessed_range(image, address));
        let Some((start, length)) = range else { return true };
        let Some(code) = image.bytes(start, length) else { return true };
        listed.0 = start..start + length;
        listed.1.clear();
        listed.1.extend(Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE).iter());
    }
    listed.1.binary_search_by_key(&(address as u64), Instruction::ip).is_ok()
}

/// Likewise short branches, which only code close by can make; inside `ranges` the disassembly knows better.
pub(super) fn mark_short_branches(
    image: &Image,
    candidates: &[usize],
    ranges: &[(usize, usize)],
    near: &AddressSet,
    landings: &mut AddressSet,
) {
    const REACH_BYTES: usize = 128 + NEIGHBOURHOOD_BYTES;
    let mut listed = (0..0, Vec::new());
    for &candidate in candidates {
        for address in candidate.saturating_sub(REACH_BYTES)..candidate + REACH_BYTES {
            let known = ranges.partition_point(|&(start, _)| start <= address);
            if known > 0 && address < ranges[known - 1].0 + ranges[known - 1].1 {
                continue;
            }
            if let Some([0xeb | 0x70..=0x7f | 0xe0..=0xe3, distance]) = image.bytes(address, 2) {
                let target = (address + 2).wrapping_add_signed(*distance as i8 as isize);
                if near.contains(target) && !landings.contains(target) && is_instruction(image, address, &mut listed) {
                    landings.insert(target);
                }
            }
        }
    }
}

/// Adds what may be targets of jump tables that the function in `listing` refers to.
pub(super) fn mark_jump_tables(image: &Image, listing: &[Instruction], landings: &mut AddressSet) {
    let indirect = listing.iter().any(|i| i.flow_control() == FlowControl::IndirectBranch);
    if !indirect {
        return;
    }
    for instruction in listing {
        if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
            let table = instruction.ip_rel_memory_address() as usize;
            for entry in 0..JUMP_TABLE_ENTRIES_MAX {
                let Some(bytes) = image.bytes(table + entry * 4, 4) else { break };
                let target = table.wrapping_add_signed(u32_at(bytes, 0) as i32 as isize);
                if !image.is_text(target) {
                    break;
                }
                landings.insert(target);
            }
            mark_addresses(image, table, landings);
        }
        // A table of addresses in a program that is not position-independent.
        if instruction.flow_control() == FlowControl::IndirectBranch && instruction.op0_kind() == OpKind::Memory {
            mark_addresses(image, instruction.memory_displacement64() as usize, landings);
        }
    }
}

/// Adds the addresses of text that stand one after the other at `table`.
fn mark_addresses(image: &Image, table: usize, landings: &mut AddressSet) {
    for entry in 0..JUMP_TABLE_ENTRIES_MAX {
        let Some(bytes) = image.bytes(table.wrapping_add(entry * 8), 8) else { break };
        let target = (u64_at(bytes, 0) as usize).wrapping_sub(image.bias);
        if !image.is_text(target) {
            break;
        }
        landings.insert(target);
    }
}
