//! The code of a slot: the relocated instructions of a site around the inline filter and the way to the kernel.
//!
//! Written for a process, it holds the addresses it needs and a `syscall` instruction of its own ([`Reach::Direct`]). In a prepared copy,
//! which every process maps as it is, addresses stand on a page of words at a fixed distance, and the `syscall` instruction is
//! a gate's ([`super::gates`]), whose unwind information is known ([`Reach::Words`]).

use super::area::{ORIGINAL_BYTES, SLOT_BYTES_MAX};
use super::gates;
use crate::entry;
use crate::front::descriptors::{CLONE_REQUESTS, LOOP_REQUESTS};
use crate::front::links::{ANSWER_SHIFT, RECHECK, takes_path};
use crate::front::process_links;
use crate::number::{CLOSE, IOCTL, NEWFSTATAT, READLINK, READLINKAT, RECVMMSG, RECVMSG, SENDTO, STAT, STATX};
use crate::plan::{FIXUP_AFTER, FLAG_ENDS, Site, WINDOW_BYTES_MAX};
use crate::table::{Class, NUMBER_LIMIT, class_of};

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
    let next = gates::behind(system_call).unwrap_or(system_call + 2);
    // SAFETY: a slot goes on for more bytes than are read here behind each way to the kernel: its last eight are no code.
    unsafe {
        if (next as *const u32).read_unaligned() == RECHECK_MARK {
            next + RECHECK_JUMP_END + ((next + RECHECK_JUMP_END - 1) as *const u8).read() as usize
        } else {
            next
        }
    }
}

/// How the code of a slot reaches what lies outside of it and of its object.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// By addresses in the code.
    Direct {
        /// The handler's entry.
        entry: usize,
    },
    /// By words on a page at a fixed distance.
    Words {
        /// Where the page is.
        page: usize,
        /// Which of the gates that stand there is the site's.
        gate: usize,
    },
}

/// The words that the code of a prepared copy finds on its page; the addresses of its gates follow.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Word {
    /// The handler's entry.
    Entry,
    /// The classes of system calls.
    Classes,
    /// What is known of descriptors.
    Marks,
    /// Whether placeholders are kept.
    Held,
    /// The placeholders' inode number.
    Placeholder,
}

/// How many words stand in front of the gates' addresses.
pub(crate) const WORD_COUNT: usize = 8;

impl Word {
    /// What stands there in this process. The entry: the one for the C library's code.
    pub(crate) fn values() -> [usize; WORD_COUNT] {
        let mut values = [0; WORD_COUNT];
        values[Word::Entry as usize] = entry::entry_address();
        values[Word::Classes as usize] = entry::classes_address();
        values[Word::Marks as usize] = entry::descriptor_marks_address();
        values[Word::Held as usize] = entry::held_mark_address();
        values[Word::Placeholder as usize] = process_links::placeholder_address();
        values
    }

    fn address(self) -> usize {
        match self {
            Word::Entry => entry::entry_address(),
            Word::Classes => entry::classes_address(),
            Word::Marks => entry::descriptor_marks_address(),
            Word::Held => entry::held_mark_address(),
            Word::Placeholder => process_links::placeholder_address(),
        }
    }
}

/// The code of a slot.
pub(crate) struct Slot {
    /// It, and where the original `syscall` returns to, counted from the slot's start, in its last bytes.
    pub(crate) bytes: [u8; SLOT_BYTES_MAX],
    /// Where the way to the kernel ends in it, and the program's call goes on.
    pub(crate) behind: usize,
}

/// The code for `site` of an object with load address `bias`, for a slot of so many bytes at an address. `None` if it must be left alone.
pub(crate) fn slot(site: &Site, bias: usize, slot: usize, slot_bytes: usize, reach: Reach) -> Option<Slot> {
    let start = bias.wrapping_add(site.start as usize);
    let window = site.window as usize;
    let mut code = Emitter::new(slot, slot_bytes, reach);
    let before = code.position;
    code.put(&site.before[..site.before_length as usize]);
    let behind = emit_filter(&mut code, site.number)?;
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
        let target = bias.wrapping_add(fixup.target as usize);
        code.displacement(base + position as usize, base + end as usize, target);
    }
    if code.failed {
        return None;
    }
    let original_return = start + site.syscall_offset as usize + 2;
    let at = code.limit;
    code.bytes[at..at + ORIGINAL_BYTES].copy_from_slice(&original_return.wrapping_sub(slot).to_le_bytes());
    Some(Slot { bytes: code.bytes, behind })
}

/// The bytes to put in a site's window, given the displacement of the jump.
pub(crate) fn jump(displacement: i32) -> [u8; WINDOW_BYTES_MAX] {
    let mut bytes = [0xcc_u8; WINDOW_BYTES_MAX];
    bytes[0] = 0xe9;
    bytes[1..5].copy_from_slice(&displacement.to_le_bytes());
    bytes
}

/// The distance a 32-bit displacement counted from `from` must have to reach `to`.
pub(crate) fn displacement_between(from: usize, to: usize) -> Option<i32> {
    i32::try_from((to as i64).wrapping_sub(from as i64)).ok()
}

/// Writes the filter and the way to the kernel; returns where that ends.
fn emit_filter(code: &mut Emitter, number: i16) -> Option<usize> {
    let class = usize::try_from(number).ok().map(class_of);
    let mut to_pass = [0; 3];
    let (mut to_handler, mut clones) = (None, None);
    if class.is_none() {
        code.put(&[0x48, 0x3d]); // cmp rax, NUMBER_LIMIT - 1
        code.put(&(NUMBER_LIMIT as u32 - 1).to_le_bytes());
        to_pass[0] = code.short_jump(0x77); // ja pass
        code.load(Word::Classes);
        code.put(&[0x45, 0x0f, 0xb6, 0x1c, 0x03]); // movzx r11d, byte [r11 + rax]
        code.put(&[0x41, 0x83, 0xeb, 0x01]); // sub r11d, 1
        to_pass[1] = code.short_jump(0x72); // jb pass
        to_handler = Some(code.short_jump(0x75)); // jne handler
    }
    if usize::try_from(number) == Ok(IOCTL) {
        // Requests that name a descriptor besides: it may be ours though the first is not.
        code.put(&[0x89, 0xf1]); // mov ecx, esi
        code.put(&[0xc1, 0xe9, 0x08]); // shr ecx, 8
        code.put(&[0x83, 0xf9, LOOP_REQUESTS]); // cmp ecx, LOOP_REQUESTS
        to_handler = Some(code.short_jump(0x74)); // je handler
        code.put(&[0x80, 0xf9, CLONE_REQUESTS]); // cmp cl, CLONE_REQUESTS
        clones = Some(code.short_jump(0x74)); // je handler
    }
    if usize::try_from(number) == Ok(SENDTO) {
        // Only an address may lead to a volume.
        code.put(&[0x4d, 0x85, 0xc0]); // test r8, r8
        to_pass[0] = code.short_jump(0x74); // je pass
    }
    let by_table = matches!(class, Some(Class::Table | Class::DescriptorOrTable));
    if by_table {
        code.load(Word::Held);
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
        code.load(Word::Marks);
        // Closing concerns the handler by any mark.
        match usize::try_from(number) {
            Ok(CLOSE) | Err(_) => code.put(&[0x41, 0x80, 0x3c, 0x0b, 0x00]), // cmp byte [r11 + rcx], 0
            Ok(_) => code.put(&[0x41, 0xf6, 0x04, 0x0b, entry::MARKS_OF_CALLS]), // test byte [r11 + rcx], marks
        }
        let unmarked = code.short_jump(0x74); // je pass
        for at in [to_handler, clones].into_iter().flatten() {
            code.land(at);
        }
        code.enter();
        code.land(unmarked);
    } else if class == Some(Class::Table) {
        let none_held = code.short_jump(0x74); // je pass
        code.enter();
        code.land(none_held);
    } else if class == Some(Class::Handler) {
        code.enter();
    }
    for at in to_pass {
        if at != 0 {
            code.land(at);
        }
    }
    code.system_call();
    let behind = code.position;
    if let Some(number) = usize::try_from(number).ok().filter(|number| takes_path(*number)) {
        // A path of the host that the kernel does not find may lead to a volume by a symbolic link; so may one that leads to a placeholder.
        code.put(&RECHECK_MARK.to_le_bytes());
        code.put(&[0x48, 0x85, 0xc0, 0x90]); // test rax, rax; nop
        let mut to_end = [0; 3];
        match number {
            STAT | NEWFSTATAT | STATX => {
                to_end[0] = code.short_jump(0x7f); // jg end, never: what was done goes on there
                let failed = code.short_jump(0x78); // js failed
                code.load(Word::Placeholder);
                code.put(&[0x4d, 0x8b, 0x1b]); // mov r11, [r11]
                code.put(match number {
                    STAT => &[0x4c, 0x39, 0x5e, 0x08],       // cmp [rsi + 8], r11
                    NEWFSTATAT => &[0x4c, 0x39, 0x5a, 0x08], // cmp [rdx + 8], r11
                    _ => &[0x4d, 0x39, 0x58, 0x20],          // cmp [r8 + 32], r11
                });
                to_end[1] = code.short_jump(0x75); // jne end
                code.land(failed);
            }
            READLINK | READLINKAT => {
                to_end[0] = code.short_jump(0x74); // je end
                let failed = code.short_jump(0x78); // js failed
                code.put(&[0x83, 0xf8, 0x01]); // cmp eax, 1: it may be the root
                let short = code.short_jump(0x74); // je short
                code.put(&[0x83, 0xf8, 0x04]); // cmp eax, 4
                to_end[1] = code.short_jump(0x7c); // jl end
                code.put(if number == READLINK { &[0x81, 0x3e] } else { &[0x81, 0x3a] }); // cmp dword [buffer], "/mem"
                code.put(b"/mem");
                to_end[2] = code.short_jump(0x75); // jne end
                code.land(short);
                code.put(&[0x31, 0xc0]); // xor eax, eax
                code.land(failed);
            }
            _ => to_end[0] = code.short_jump(0x79), // jns end
        }
        code.put(&[0xf7, 0xd8]); // neg eax
        code.put(&[0xc1, 0xe0, ANSWER_SHIFT]); // shl eax, ANSWER_SHIFT
        code.put(&[0x0d]); // or eax, RECHECK + number
        code.put(&((RECHECK + number) as u32).to_le_bytes());
        code.enter();
        for at in to_end.into_iter().filter(|at| *at != 0) {
            code.land(at);
        }
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
        code.enter();
        code.land(failed);
        code.land(none);
    }
    (!code.failed).then_some(behind)
}

/// Writes machine code for one slot.
struct Emitter {
    slot: usize,
    bytes: [u8; SLOT_BYTES_MAX],
    /// Where the code must end.
    limit: usize,
    position: usize,
    reach: Reach,
    /// Where the way to the kernel begins.
    system_call: Option<usize>,
    /// The end of an instruction that wants to know.
    open: Option<usize>,
    failed: bool,
}

impl Emitter {
    fn new(slot: usize, slot_bytes: usize, reach: Reach) -> Self {
        let limit = slot_bytes - ORIGINAL_BYTES;
        let bytes = [0xcc; SLOT_BYTES_MAX];
        Self { slot, bytes, limit, position: 0, reach, system_call: None, open: None, failed: false }
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

    /// Jumps to the handler's entry with rcx leading to the `syscall` instruction. Once in front of it, or any number of times behind it.
    fn enter(&mut self) {
        match self.reach {
            Reach::Direct { entry } => {
                self.put(&[0x48, 0x8d, 0x0d, 0, 0, 0, 0]); // lea rcx, [rip + system_call]
                match self.system_call {
                    Some(system_call) => self.displacement(self.position - 4, self.position, self.slot + system_call),
                    None => self.open = Some(self.position),
                }
                self.jump_far(entry);
            }
            Reach::Words { page, gate } => {
                self.with_word(&[0x48, 0x8b, 0x0d], page, WORD_COUNT + gate); // mov rcx, [gate]
                self.with_word(&[0xff, 0x25], page, Word::Entry as usize); // jmp [entry]
            }
        }
    }

    /// Loads an address into r11.
    fn load(&mut self, word: Word) {
        match self.reach {
            Reach::Direct { .. } => {
                self.put(&[0x49, 0xbb]); // mov r11, address
                self.put(&(word.address() as u64).to_le_bytes());
            }
            Reach::Words { page, .. } => self.with_word(&[0x4c, 0x8b, 0x1d], page, word as usize), // mov r11, [word]
        }
    }

    /// The way to the kernel and back here.
    fn system_call(&mut self) {
        self.system_call = Some(self.position);
        if let Some(end) = self.open {
            self.displacement(end - 4, end, self.slot + self.position);
        }
        match self.reach {
            Reach::Direct { .. } => self.put(&[0x0f, 0x05]),
            Reach::Words { page, gate } => self.with_word(&[0xff, 0x25], page, WORD_COUNT + gate), // jmp [gate]
        }
    }

    /// An instruction that ends with the distance to a word.
    fn with_word(&mut self, opcode: &[u8], page: usize, index: usize) {
        self.put(opcode);
        self.put(&[0; 4]);
        if !self.failed {
            self.displacement(self.position - 4, self.position, page + index * size_of::<usize>());
        }
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
