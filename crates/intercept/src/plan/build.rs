//! Makes a plan: disassembles an object's functions and chooses, for each `syscall`, the bytes to replace.
//!
//! A site needs five bytes for a jump. They are the `syscall` and whole instructions around it, none of which but the
//! first may be where another jump lands. Landing places are taken from everything in the text that could be a direct branch and,
//! for the functions in question, from anything that looks like a jump table. Only these functions are disassembled.

use super::Site;
use super::image::{Function, Image};
use super::landings::{AddressSet, mark_far_branches, mark_jump_tables, mark_short_branches};
use super::window::choose_window;
use crate::table::{Class, class_of};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
};

/// How far around a `syscall` landing places matter.
pub(super) const NEIGHBOURHOOD_BYTES: usize = 32;
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
pub(super) fn guessed_range(image: &Image, candidate: usize) -> Option<(usize, usize)> {
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

/// Whether the `syscall` at `offset` of `text` is a return from a signal handler. Unwinders and debuggers know it by these bytes,
/// so it must stay; and its unwind information starts one byte early, where a disassembler goes astray.
fn is_signal_return(text: &[u8], offset: usize) -> bool {
    // mov rax, 15 in its long and its short form
    text[..offset].ends_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0]) || text[..offset].ends_with(&[0xb8, 0x0f, 0, 0, 0])
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
