//! What an instruction loads and stores, found before it runs.

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory,
};
use libc::user_regs_struct as Registers;

/// The longest instruction.
pub(crate) const INSTRUCTION_BYTES_MAX: usize = 15;

pub(crate) struct Access {
    pub(crate) address: u64,
    pub(crate) length_bytes: u64,
    pub(crate) loads: bool,
    pub(crate) stores: bool,
}

/// A decoded instruction.
pub(crate) struct Step {
    instruction: Instruction,
    memory: Vec<UsedMemory>,
}

impl Step {
    pub(crate) fn decode(code: &[u8], address: u64, factory: &mut InstructionInfoFactory) -> Self {
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        let memory = factory.info(&instruction).used_memory().to_vec();
        Self { instruction, memory }
    }

    /// Whether it is the mark.
    pub(crate) fn is_mark(&self) -> bool {
        self.instruction.mnemonic() == Mnemonic::Int3
    }

    pub(crate) fn is_system_call(&self) -> bool {
        self.instruction.mnemonic() == Mnemonic::Syscall
    }

    /// What it will load and store with these registers. Fails for an address that is not to be had: vectors of addresses.
    pub(crate) fn accesses(&self, registers: &Registers) -> Result<Vec<Access>, String> {
        // `clwb` and its like write a line back, they change nothing in it; prefetches ask for nothing.
        let is_flush = matches!(
            self.instruction.mnemonic(),
            Mnemonic::Clwb | Mnemonic::Clflushopt | Mnemonic::Clflush | Mnemonic::Lea
        );
        let repeats = self.instruction.has_rep_prefix() || self.instruction.has_repne_prefix();
        let is_string = self.instruction.is_string_instruction();
        if is_flush || (is_string && repeats && registers.rcx == 0) {
            return Ok(Vec::new());
        }
        let mut accesses = Vec::new();
        for memory in &self.memory {
            let (loads, stores) = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
                OpAccess::None | OpAccess::NoMemAccess => continue,
            };
            let address = memory
                .virtual_address(0, |register, _, _| value(register, registers))
                .ok_or_else(|| format!("{:?} at {:#x}", self.instruction.code(), registers.rip))?;
            // One step is one repetition.
            let size = if is_string { self.instruction.memory_size() } else { memory.memory_size() };
            accesses.push(Access { address, length_bytes: size.size() as u64, loads, stores });
        }
        Ok(accesses)
    }
}

fn value(register: Register, registers: &Registers) -> Option<u64> {
    Some(match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accesses(code: &[u8], change: impl FnOnce(&mut Registers)) -> Vec<(u64, u64, bool, bool)> {
        // SAFETY: the structure is plain numbers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        change(&mut registers);
        let step = Step::decode(code, 0x1000, &mut InstructionInfoFactory::new());
        let found = step.accesses(&registers).expect("addresses");
        found.iter().map(|access| (access.address, access.length_bytes, access.loads, access.stores)).collect()
    }

    #[test]
    fn loads_and_stores_are_told_apart() {
        // mov rax, [rbx+8]
        assert_eq!(accesses(&[0x48, 0x8b, 0x43, 0x08], |r| r.rbx = 0x100), [(0x108, 8, true, false)]);
        // mov fs:[rax+rcx*2], edx
        let change = |r: &mut Registers| (r.fs_base, r.rax, r.rcx) = (0x10_0000, 0x100, 4);
        assert_eq!(accesses(&[0x64, 0x89, 0x14, 0x48], change), [(0x10_0108, 4, false, true)]);
        // lock cmpxchg [rdi], rsi: a store, whatever it finds
        assert_eq!(accesses(&[0xf0, 0x48, 0x0f, 0xb1, 0x37], |r| r.rdi = 0x200), [(0x200, 8, true, true)]);
        // vmovntdq [rdi], zmm0
        assert_eq!(accesses(&[0x62, 0xf1, 0x7d, 0x48, 0xe7, 0x07], |r| r.rdi = 0x240), [(0x240, 64, false, true)]);
        // clwb [rdi]
        assert_eq!(accesses(&[0x66, 0x0f, 0xae, 0x37], |r| r.rdi = 0x240), []);
    }

    #[test]
    fn strings_go_one_step_at_a_time() {
        let change = |count| move |r: &mut Registers| (r.rcx, r.rsi, r.rdi) = (count, 0x100, 0x200);
        // rep movsb
        assert_eq!(accesses(&[0xf3, 0xa4], change(0)), []);
        let mut found = accesses(&[0xf3, 0xa4], change(7));
        found.sort();
        assert_eq!(found, [(0x100, 1, true, false), (0x200, 1, false, true)]);
    }
}
