//! Makes a plan: disassembles an object's functions and chooses, for each `syscall`, the bytes to replace.
//!
//! A site needs five bytes for a jump. They are the `syscall` and whole instructions around it, none of which but the
//! first may be where another jump lands. Landing places are taken from everything in the text that could be a direct branch and,
//! for the functions in question, from anything that looks like a jump table. Only these functions are disassembled.

use super::image::{Function, Image, u32_at, u64_at};
use super::{AFTER_BYTES_MAX, BEFORE_BYTES_MAX, FIXUP_AFTER, FIXUPS_MAX, FLAG_ENDS, Fixup, Site, WINDOW_BYTES_MAX};
use crate::table::{Class, class_of};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

/// How far around a `syscall` landing places matter.
const NEIGHBOURHOOD_BYTES: usize = 32;
/// Bound on the entries read from something that looks like a jump table.
const JUMP_TABLE_ENTRIES_MAX: usize = 1024;
/// How much code without unwind information behind a function is taken to belong to it.
const GAP_BYTES_MAX: usize = 256;
/// How far in front of a candidate the start of code without unwind information is looked for.
const GUESS_BYTES_MAX: usize = 4096;
/// How many instructions back the system call number is looked for.
const NUMBER_SEARCH_INSTRUCTIONS: usize = 12;

/// A plan and what was seen while making it.
pub(crate) struct Built {
    /// The sites to rewrite, and those that cannot be (`window == 0`).
    pub(crate) sites: Vec<Site>,
    /// `syscall` instructions in the object.
    pub(crate) instruction_count: usize,
    /// Of those, how many are left alone because their certain number never concerns us.
    pub(crate) uninteresting_count: usize,
}

/// A set of addresses relative to the load address.
struct AddressSet {
    words: Vec<u64>,
}

impl AddressSet {
    fn new(limit: usize) -> Self {
        Self { words: vec![0; limit / 64 + 1] }
    }
    fn insert(&mut self, address: usize) {
        if let Some(word) = self.words.get_mut(address / 64) {
            *word |= 1 << (address % 64);
        }
    }
    fn contains(&self, address: usize) -> bool {
        self.words.get(address / 64).is_some_and(|word| word & (1 << (address % 64)) != 0)
    }
}

/// Makes the plan of `image`. `None` if its text cannot be read.
pub(crate) fn build(image: &Image) -> Option<Built> {
    let mut candidates = Vec::new();
    let mut limit = 0;
    for segment in image.segments().iter().filter(|segment| segment.executable) {
        let text = image.bytes(segment.start, segment.length)?;
        limit = limit.max(segment.start + segment.length);
        let found = text.windows(2).enumerate().filter(|(_, pair)| pair == &[0x0f, 0x05]);
        candidates.extend(
            found
                .map(|(offset, _)| offset)
                .filter(|&offset| !is_signal_return(text, offset))
                .map(|offset| segment.start + offset),
        );
    }
    let mut built = Built { sites: Vec::new(), instruction_count: 0, uninteresting_count: 0 };
    if candidates.is_empty() {
        return Some(built);
    }
    if limit > u32::MAX as usize {
        return None;
    }
    candidates.sort_unstable();
    let ranges = ranges_around(image, &candidates);
    let mut near = AddressSet::new(limit);
    for &candidate in &candidates {
        for address in candidate.saturating_sub(NEIGHBOURHOOD_BYTES)..candidate + NEIGHBOURHOOD_BYTES {
            near.insert(address);
        }
    }
    let mut landings = AddressSet::new(limit);
    for &(start, _) in &ranges {
        landings.insert(start);
    }
    mark_far_branches(image, &near, &mut landings);
    mark_short_branches(image, &candidates, &ranges, &near, &mut landings);
    let mut instruction = Instruction::default();
    for &(start, length) in &ranges {
        let code = image.bytes(start, length)?;
        let mut decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if matches!(instruction.op0_kind(), OpKind::NearBranch64) {
                let target = instruction.near_branch64() as usize;
                if near.contains(target) {
                    landings.insert(target);
                }
            }
        }
    }
    let mut listing: Vec<Instruction> = Vec::new();
    let mut information = InstructionInfoFactory::new();
    let mut next_candidate = 0;
    for &(start, length) in &ranges {
        while next_candidate < candidates.len() && candidates[next_candidate] < start {
            built.sites.push(Site::unpatchable(candidates[next_candidate] as u32, -1));
            next_candidate += 1;
        }
        let first = next_candidate;
        while next_candidate < candidates.len() && candidates[next_candidate] < start + length {
            next_candidate += 1;
        }
        if first == next_candidate {
            continue;
        }
        let code = image.bytes(start, length)?;
        listing.clear();
        listing.extend(Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE).iter());
        mark_jump_tables(image, &listing, &mut landings);
        // What follows bytes that are no instruction may be out of step with the real ones.
        let in_step = listing.iter().position(Instruction::is_invalid).unwrap_or(listing.len());
        for &address in &candidates[first..next_candidate] {
            // A candidate that does not begin an instruction is none.
            let listed = listing[..in_step].iter().any(|i| i.ip() <= address as u64 && (address as u64) < i.next_ip());
            if !listed {
                built.sites.push(Site::unpatchable(address as u32, -1));
            }
        }
        for index in 0..in_step {
            if listing[index].code() != Code::Syscall || is_signal_return(code, listing[index].ip() as usize - start) {
                continue;
            }
            built.instruction_count += 1;
            let number = certain_number(&listing, index, &landings, &mut information);
            if number.is_some_and(|number| class_of(number) == Class::Pass) {
                built.uninteresting_count += 1;
                continue;
            }
            let number = number.map_or(-1, |number| number as i16);
            let address = listing[index].ip() as usize;
            let site = choose_window(image, &listing, index, &landings, number);
            built.sites.push(site.unwrap_or_else(|| Site::unpatchable(address as u32, number)));
        }
    }
    for &candidate in &candidates[next_candidate..] {
        built.sites.push(Site::unpatchable(candidate as u32, -1));
    }
    Some(built)
}

/// Start and length of the code to disassemble: the functions that hold candidates, each with the gap behind it, ascending and disjoint.
fn ranges_around(image: &Image, candidates: &[usize]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let mut last_is_guessed = false;
    for &candidate in candidates {
        if let Some((start, length)) = ranges.last_mut()
            && candidate < *start + *length
        {
            if last_is_guessed {
                *length = within_segment(image, *start, candidate - *start + GAP_BYTES_MAX);
            }
            continue;
        }
        let behind_last = ranges.last().map_or(0, |&(start, length)| start + length);
        let known = image.function_before(candidate).and_then(|function| {
            let Function { start, length, next } = function;
            // Hand-written code leaves the part that follows a `syscall` onto a new stack without unwind information.
            let reach = next.saturating_sub(start).min(length + GAP_BYTES_MAX).max(length);
            (candidate < start.saturating_add(reach)).then(|| (start, within_segment(image, start, reach)))
        });
        let guessed = known.is_none();
        let range = known.or_else(|| guessed_range(image, candidate));
        if let Some((start, length)) = range
            && start >= behind_last
        {
            ranges.push((start, length));
            last_is_guessed = guessed;
        }
    }
    ranges
}

/// `length` cut at the end of the segment that `start` is in.
fn within_segment(image: &Image, start: usize, length: usize) -> usize {
    let segment = image.segments().iter().find(|s| s.executable && (s.start..s.start + s.length).contains(&start));
    segment.map_or(0, |s| length.min(s.start + s.length - start))
}

/// Where code without unwind information (Go's) can be disassembled from: behind the padding between two functions.
fn guessed_range(image: &Image, candidate: usize) -> Option<(usize, usize)> {
    const ALIGNMENT: usize = 16;
    const PADDING: u8 = 0xcc;
    let mut start = candidate & !(ALIGNMENT - 1);
    let lowest = candidate.saturating_sub(GUESS_BYTES_MAX);
    while start > lowest {
        let before = image.bytes(start.checked_sub(1)?, 1)?;
        if before[0] == PADDING {
            let length = within_segment(image, start, candidate - start + GAP_BYTES_MAX);
            return Some((start, length));
        }
        start -= ALIGNMENT;
    }
    None
}

/// Marks what long branches anywhere in the text lead to near a candidate. Found by their bytes; what such bytes belong to is then
/// disassembled, so that only branches count.
fn mark_far_branches(image: &Image, near: &AddressSet, landings: &mut AddressSet) {
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
fn mark_short_branches(
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

/// Whether the `syscall` at `offset` of `text` is a return from a signal handler. Unwinders and debuggers know it by these bytes,
/// so it must stay; and its unwind information starts one byte early, where a disassembler goes astray.
fn is_signal_return(text: &[u8], offset: usize) -> bool {
    // mov rax, 15 in its long and its short form
    text[..offset].ends_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0]) || text[..offset].ends_with(&[0xb8, 0x0f, 0, 0, 0])
}

/// Adds what may be targets of jump tables that the function in `listing` refers to.
fn mark_jump_tables(image: &Image, listing: &[Instruction], landings: &mut AddressSet) {
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

/// The number the system call at `index` certainly has: loaded as a constant in the same straight line.
fn certain_number(
    listing: &[Instruction],
    index: usize,
    landings: &AddressSet,
    information: &mut InstructionInfoFactory,
) -> Option<usize> {
    if landings.contains(listing[index].ip() as usize) {
        return None;
    }
    // Backwards, as long as execution certainly comes from there.
    for back in listing[..index].iter().rev().take(NUMBER_SEARCH_INSTRUCTIONS) {
        match back.code() {
            Code::Mov_r32_imm32 if back.op0_register() == Register::EAX => return Some(back.immediate32() as usize),
            Code::Mov_rm64_imm32 if back.op0_kind() == OpKind::Register && back.op0_register() == Register::RAX => {
                return usize::try_from(back.immediate(1) as i64).ok();
            }
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32
                if back.op0_kind() == OpKind::Register
                    && back.op1_kind() == OpKind::Register
                    && back.op0_register() == Register::EAX
                    && back.op1_register() == Register::EAX =>
            {
                return Some(0);
            }
            _ => {}
        }
        // A conditional branch that is not taken leads on: only what comes in from elsewhere matters.
        if !matches!(back.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) || back.is_invalid() {
            return None;
        }
        let writes_number = information.info(back).used_registers().iter().any(|used| {
            used.register().full_register() == Register::RAX
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
        });
        if writes_number || landings.contains(back.ip() as usize) {
            return None;
        }
    }
    None
}

/// Chooses the instructions to replace around the `syscall` at `index`.
fn choose_window(
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
