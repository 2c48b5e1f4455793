//! Applies a plan to an object: writes a trampoline for each site and the jump to it.
//!
//! A trampoline is the relocated instructions around the inline filter and a `syscall` instruction of its own. Filter
//! and relocation use rcx, r11 and the flags only, which `syscall` destroys anyway, and never the stack: red zones,
//! `vfork`, new stacks and tiny stacks need nothing special.
//!
//! Who calls this answers for no other thread executing the object meanwhile: it is called while the program is
//! being loaded, or from the `mmap` that maps the object.

pub(crate) mod area;

use crate::entry;
use crate::front::links::{RECHECK, takes_path};
use crate::number;
use crate::number::{CLOSE, RECVMMSG, RECVMSG};
use crate::plan::image::Image;
use crate::plan::{FIXUP_AFTER, FLAG_ENDS, Site};
use crate::raw::{is_error, syscall};
use crate::table::{CLASSES, Class, NUMBER_LIMIT, class_of};
use area::{ORIGINAL_BYTES, Run, SLOT_BYTES_MAX};

/// What became of the sites of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Sites rewritten.
    pub(crate) patched: usize,
    /// Sites left as they were.
    pub(crate) left: usize,
}

/// An instruction without effect that no compiler makes (`nop dword ptr [rax + 0x67]`): a recheck follows.
const RECHECK_MARK: u32 = 0x6740_1f0f;
/// Bytes from the mark to the end of the short jump over the recheck.
const RECHECK_JUMP_END: usize = 10;

/// Where a call that was done goes on, given the address of the trampoline's `syscall` instruction: behind the recheck, if
/// there is one, which is for the kernel's answers only.
///
/// # Safety
/// `system_call` must be the address of such an instruction in a trampoline.
#[inline]
pub(crate) unsafe fn behind(system_call: usize) -> usize {
    let next = system_call + 2;
    // SAFETY: a slot goes on for more bytes than are read here behind each `syscall` instruction: its last eight are no code.
    unsafe {
        if (next as *const u32).read_unaligned() == RECHECK_MARK {
            next + RECHECK_JUMP_END + ((next + RECHECK_JUMP_END - 1) as *const u8).read() as usize
        } else {
            next
        }
    }
}

const PAGE_BYTES: usize = 4096;
const PROT_READ_WRITE_EXECUTE: usize = 7;
const PROT_READ_EXECUTE: usize = 5;
/// Sites whose pages lie this close share one change of protection.
const JOIN_BYTES: usize = 64 * PAGE_BYTES;

/// Rewrites the sites of `image` with trampolines in `area`. `full_vectors`: the object's code may keep values in
/// vector registers beyond the lower halves of xmm0–15 across a system call.
///
/// # Safety
/// The plan must have been made for this object; no thread may execute the object's sites meanwhile.
pub(crate) unsafe fn apply(image: &Image, sites: &[Site], area: &mut Run, full_vectors: bool) -> Outcome {
    let mut outcome = Outcome::default();
    let entry = if full_vectors { entry::entry_full_address() } else { entry::entry_address() };
    let mut index = 0;
    while index < sites.len() {
        // A run of sites on pages near each other is made writable in one step.
        let first_page = image.bias.wrapping_add(sites[index].start as usize) & !(PAGE_BYTES - 1);
        let mut end = index;
        let mut last_byte = first_page;
        while end < sites.len() {
            let start = image.bias.wrapping_add(sites[end].start as usize);
            if start < first_page || start > last_byte + JOIN_BYTES {
                break;
            }
            last_byte = start + (sites[end].window as usize).max(1) - 1;
            end += 1;
        }
        let run = &sites[index..end];
        index = end;
        let length = (last_byte & !(PAGE_BYTES - 1)) + PAGE_BYTES - first_page;
        let inside = image.bytes(first_page.wrapping_sub(image.bias), length).is_some()
            || image
                .bytes(run[0].start as usize, last_byte + 1 - (image.bias.wrapping_add(run[0].start as usize)))
                .is_some();
        // SAFETY: the range lies in the object's text; it stays executable throughout.
        if !inside || is_error(unsafe { syscall(number::MPROTECT, [first_page, length, PROT_READ_WRITE_EXECUTE]) }) {
            outcome.left += run.len();
            continue;
        }
        populate(image, run);
        for site in run {
            // SAFETY: the caller's promise; the pages are writable.
            if unsafe { apply_site(image, site, area, entry) } {
                outcome.patched += 1;
            } else {
                outcome.left += 1;
            }
        }
        // SAFETY: as above.
        unsafe { syscall(number::MPROTECT, [first_page, length, PROT_READ_EXECUTE]) };
    }
    outcome
}

/// Gets the pages that `sites` stand on, ascending and writable, copied: a call for each row of pages instead of two faults for
/// each page. That it fails only costs time.
fn populate(image: &Image, sites: &[Site]) {
    let mut row = 0..0;
    let copy = |row: &core::ops::Range<usize>| {
        if !row.is_empty() {
            area::populate(row.start, row.len());
        }
    };
    for site in sites.iter().filter(|site| site.window != 0) {
        let start = image.bias.wrapping_add(site.start as usize);
        let pages = start & !(PAGE_BYTES - 1)..(start + site.window as usize).next_multiple_of(PAGE_BYTES);
        if pages.start <= row.end && !row.is_empty() {
            row.end = row.end.max(pages.end);
        } else {
            copy(&row);
            row = pages;
        }
    }
    copy(&row);
}

/// Rewrites one site whose page is writable. False if it must be left alone.
///
/// # Safety
/// As for [`apply`].
unsafe fn apply_site(image: &Image, site: &Site, area: &mut Run, entry: usize) -> bool {
    let window = site.window as usize;
    let Some(current) = image.bytes(site.start as usize, window.max(1)) else { return false };
    if window == 0 || current != &site.original[..window] {
        return false;
    }
    let start = image.bias.wrapping_add(site.start as usize);
    let Some(slot) = area.next_slot() else { return false };
    let mut code = Emitter::new(slot, area.slot_bytes);
    let before = code.position;
    code.put(&site.before[..site.before_length as usize]);
    let system_call = emit_filter(&mut code, site.number, entry);
    let after = code.position;
    code.put(&site.after[..site.after_length as usize]);
    if site.flags & FLAG_ENDS == 0 {
        code.jump(start + window);
    }
    for fixup in &site.fixups[..site.fixup_count as usize] {
        let (base, position, end) = if fixup.position >= FIXUP_AFTER {
            (after, fixup.position - FIXUP_AFTER, fixup.end - FIXUP_AFTER)
        } else {
            (before, fixup.position, fixup.end)
        };
        let target = image.bias.wrapping_add(fixup.target as usize);
        code.displacement(base + position as usize, base + end as usize, target);
    }
    if code.failed || system_call.is_none() {
        return false;
    }
    let original_return = start + site.syscall_offset as usize + 2;
    let at = code.limit;
    code.bytes[at..at + ORIGINAL_BYTES].copy_from_slice(&original_return.to_le_bytes());
    let Some(jump) = displacement_between(start + 5, slot) else { return false };
    area.write_slot(&code.bytes);
    let mut bytes = [0xcc_u8; crate::plan::WINDOW_BYTES_MAX];
    bytes[0] = 0xe9;
    bytes[1..5].copy_from_slice(&jump.to_le_bytes());
    for (offset, byte) in bytes[..window].iter().enumerate() {
        // SAFETY: the page is writable text of the object and no thread executes it now, says the caller. Volatile, so
        // that no library function, which could live on this very page, does the copying.
        unsafe { ((start + offset) as *mut u8).write_volatile(*byte) };
    }
    true
}

/// The distance a 32-bit displacement counted from `from` must have to reach `to`.
fn displacement_between(from: usize, to: usize) -> Option<i32> {
    i32::try_from((to as i64).wrapping_sub(from as i64)).ok()
}

/// Writes the filter and the system call; returns the offset of the `syscall` instruction.
fn emit_filter(code: &mut Emitter, number: i16, entry: usize) -> Option<usize> {
    let class = usize::try_from(number).ok().map(class_of);
    let mut to_pass = [0; 3];
    let mut to_handler = None;
    if class.is_none() {
        code.put(&[0x48, 0x3d]); // cmp rax, NUMBER_LIMIT - 1
        code.put(&(NUMBER_LIMIT as u32 - 1).to_le_bytes());
        to_pass[0] = code.short_jump(0x77); // ja pass
        code.put(&[0x49, 0xbb]); // mov r11, CLASSES
        code.put(&(CLASSES.as_ptr() as u64).to_le_bytes());
        code.put(&[0x45, 0x0f, 0xb6, 0x1c, 0x03]); // movzx r11d, byte [r11 + rax]
        code.put(&[0x41, 0x83, 0xeb, 0x01]); // sub r11d, 1
        to_pass[1] = code.short_jump(0x72); // jb pass
        to_handler = Some(code.short_jump(0x75)); // jne handler
    }
    let by_table = matches!(class, Some(Class::Table | Class::DescriptorOrTable));
    if by_table {
        code.put(&[0x49, 0xbb]); // mov r11, held mark
        code.put(&(entry::held_mark_address() as u64).to_le_bytes());
        code.put(&[0x41, 0x80, 0x3b, 0x00]); // cmp byte [r11], 0
    }
    if class == Some(Class::DescriptorOrTable) {
        to_handler = Some(code.short_jump(0x75)); // jne handler
    }
    if class.is_none() || matches!(class, Some(Class::Descriptor | Class::DescriptorOrTable)) {
        code.put(&[0x89, 0xf9]); // mov ecx, edi
        code.put(&[0x81, 0xf9]); // cmp ecx, limit
        code.put(&(entry::DESCRIPTOR_LIMIT as u32).to_le_bytes());
        to_pass[2] = code.short_jump(0x73); // jae pass
        code.put(&[0x49, 0xbb]); // mov r11, table
        code.put(&(entry::descriptor_marks_address() as u64).to_le_bytes());
        // Closing concerns the handler by any mark.
        match usize::try_from(number) {
            Ok(CLOSE) | Err(_) => code.put(&[0x41, 0x80, 0x3c, 0x0b, 0x00]), // cmp byte [r11 + rcx], 0
            Ok(_) => code.put(&[0x41, 0xf6, 0x04, 0x0b, entry::MARK_OURS]),  // test byte [r11 + rcx], MARK_OURS
        }
        let unmarked = code.short_jump(0x74); // je pass
        if let Some(at) = to_handler {
            code.land(at);
        }
        code.enter(entry);
        code.land(unmarked);
    } else if class == Some(Class::Table) {
        let none_held = code.short_jump(0x74); // je pass
        code.enter(entry);
        code.land(none_held);
    } else if class == Some(Class::Handler) {
        code.enter(entry);
    }
    for at in to_pass {
        if at != 0 {
            code.land(at);
        }
    }
    let system_call = code.position;
    // `enter` leads here: its address was left open until now.
    code.resolve_continuation(system_call);
    code.put(&[0x0f, 0x05]);
    if let Some(number) = usize::try_from(number).ok().filter(|number| takes_path(*number)) {
        // A path of the host that does not exist may lead to a volume by a symbolic link: asked for only then.
        code.put(&RECHECK_MARK.to_le_bytes());
        code.put(&[0x48, 0x83, 0xf8, 0xfe]); // cmp rax, -ENOENT
        let found = code.short_jump(0x75); // jne found
        code.put(&[0xb8]); // mov eax, RECHECK + number
        code.put(&((RECHECK + number) as u32).to_le_bytes());
        code.put(&[0x48, 0x8d, 0x0d]); // lea rcx, [rip + system_call]
        let back = system_call as i32 - (code.position as i32 + 4);
        code.put(&back.to_le_bytes());
        code.jump_far(entry);
        code.land(found);
    } else if let Some(number) = usize::try_from(number).ok().filter(|number| matches!(*number, RECVMSG | RECVMMSG)) {
        // Descriptors of a volume may have come with a message.
        code.put(&RECHECK_MARK.to_le_bytes());
        code.put(&[0x48, 0x85, 0xc0, 0x90]); // test rax, rax; nop
        let failed = code.short_jump(0x78); // js failed
        code.put(&[0x48, 0x83, 0x7e, 0x28, 0x00]); // cmp qword ptr [rsi + 40], 0: msg_controllen
        let none = code.short_jump(0x74); // je none
        code.put(&[0x48, 0xc1, 0xe0, 0x20]); // shl rax, 32
        code.put(&[0x48, 0x0d]); // or rax, RECHECK + number
        code.put(&((RECHECK + number) as u32).to_le_bytes());
        code.put(&[0x48, 0x8d, 0x0d]); // lea rcx, [rip + system_call]
        let back = system_call as i32 - (code.position as i32 + 4);
        code.put(&back.to_le_bytes());
        code.jump_far(entry);
        code.land(failed);
        code.land(none);
    }
    (!code.failed).then_some(system_call)
}

/// Writes machine code for one slot.
struct Emitter {
    slot: usize,
    bytes: [u8; SLOT_BYTES_MAX],
    /// Where the code must end.
    limit: usize,
    position: usize,
    continuation: Option<usize>,
    failed: bool,
}

impl Emitter {
    fn new(slot: usize, slot_bytes: usize) -> Self {
        let limit = slot_bytes - ORIGINAL_BYTES;
        Self { slot, bytes: [0xcc; SLOT_BYTES_MAX], limit, position: 0, continuation: None, failed: false }
    }

    fn put(&mut self, code: &[u8]) {
        let end = self.position + code.len();
        if end > self.limit {
            self.failed = true;
            return;
        }
        self.bytes[self.position..end].copy_from_slice(code);
        self.position = end;
    }

    /// A short conditional jump to a place not yet known; returns where its displacement stands.
    fn short_jump(&mut self, opcode: u8) -> usize {
        self.put(&[opcode, 0]);
        self.position - 1
    }

    /// Lets the short jump at `at` lead here.
    fn land(&mut self, at: usize) {
        match i8::try_from(self.position - (at + 1)) {
            Ok(distance) => self.bytes[at] = distance as u8,
            Err(_) => self.failed = true,
        }
    }

    /// Jumps to the handler's entry with rcx leading to this slot's `syscall` instruction.
    fn enter(&mut self, entry: usize) {
        self.put(&[0x48, 0x8d, 0x0d, 0, 0, 0, 0]); // lea rcx, [rip + continuation]
        self.continuation = Some(self.position);
        self.jump_far(entry);
    }

    /// Jumps anywhere; r11 is lost.
    fn jump_far(&mut self, entry: usize) {
        if displacement_between(self.slot + self.position + 5, entry).is_some() {
            self.jump(entry);
        } else {
            self.put(&[0x49, 0xbb]); // mov r11, entry
            self.put(&(entry as u64).to_le_bytes());
            self.put(&[0x41, 0xff, 0xe3]); // jmp r11
        }
    }

    fn resolve_continuation(&mut self, target: usize) {
        if let Some(end) = self.continuation {
            self.bytes[end - 4..end].copy_from_slice(&((target - end) as u32).to_le_bytes());
        }
    }

    fn jump(&mut self, target: usize) {
        self.put(&[0xe9, 0, 0, 0, 0]);
        if !self.failed {
            self.displacement(self.position - 4, self.position, target);
        }
    }

    fn displacement(&mut self, position: usize, end: usize, target: usize) {
        match displacement_between(self.slot + end, target) {
            Some(distance) if position + 4 <= self.limit => {
                self.bytes[position..position + 4].copy_from_slice(&distance.to_le_bytes());
            }
            _ => self.failed = true,
        }
    }
}
