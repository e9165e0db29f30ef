//! An assembler for the few instructions of BPF that an XDP program of ours needs (RFC 9669).

/// A register. R0 is what a function returns, R1 to R5 are its arguments and do not survive it, R6 to R9 do.
#[derive(Clone, Copy, Debug)]
pub enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
}

/// How much is loaded.
#[derive(Clone, Copy, Debug)]
pub enum Width {
    /// Four octets.
    Word = 0x00,
    /// Two.
    Half = 0x08,
    /// One.
    Octet = 0x10,
}

/// When to jump, as the unsigned numbers in a register and beside it compare.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    Different = 0x50,
}

/// What a register is set to, added to or compared with.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    Register(Register),
    Immediate(i32),
}

/// A place to jump to, further down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Instruction classes and operations (RFC 9669, sections 3 to 5).
const LDX_MEM: u8 = 0x61;
const LD_IMM64: u8 = 0x18;
const ALU64_ADD: u8 = 0x07;
const ALU64_MOV: u8 = 0xb7;
const JMP: u8 = 0x05;
const FROM_REGISTER: u8 = 0x08;
const TO_BE16: u8 = 0xdc;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// In place of the source register of a 64-bit load, this says that the immediate is a map's descriptor.
const MAP_DESCRIPTOR: u8 = 1;

/// A program while it is written.
#[derive(Debug, Default)]
pub struct Assembler {
    /// As `struct bpf_insn`: operation, registers, offset and immediate from the low end.
    code: Vec<u64>,
    /// Instructions whose offset is that of a label.
    jumps: Vec<(usize, Label)>,
    /// Where each label stands.
    labels: Vec<Option<usize>>,
}

impl Assembler {
    /// `register = *(width *)(address + offset)`
    pub fn load(&mut self, register: Register, width: Width, address: Register, offset: i16) {
        self.emit(LDX_MEM | width as u8, register as u8, address as u8, offset, 0);
    }

    /// `register = operand`
    pub fn set(&mut self, register: Register, operand: Operand) {
        self.operate(ALU64_MOV, register, operand, 0);
    }

    /// `register += operand`
    pub fn add(&mut self, register: Register, operand: Operand) {
        self.operate(ALU64_ADD, register, operand, 0);
    }

    /// The low two octets of `register`, which are in network order, as a number.
    pub fn network_to_host(&mut self, register: Register) {
        self.emit(TO_BE16, register as u8, 0, 0, 16);
    }

    /// `if register condition operand goto label`
    pub fn jump_if(&mut self, register: Register, condition: Condition, operand: Operand, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.operate(JMP | condition as u8, register, operand, 0);
    }

    /// `register =` the map with this descriptor
    pub fn load_map(&mut self, register: Register, descriptor: i32) {
        self.emit(LD_IMM64, register as u8, MAP_DESCRIPTOR, 0, descriptor);
        self.emit(0, 0, 0, 0, 0);
    }

    /// `r0 = function(r1, r2, r3, r4, r5)`, a helper of the kernel's by its number
    pub fn call(&mut self, function: i32) {
        self.emit(CALL, 0, 0, 0, function);
    }

    /// `return r0`
    pub fn exit(&mut self) {
        self.emit(EXIT, 0, 0, 0, 0);
    }

    /// A label, to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands here.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// The program.
    ///
    /// # Panics
    /// If a label to which is jumped stands nowhere, or too far away.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("the label was placed");
            let distance = i16::try_from(target as isize - at as isize - 1).expect("the program is short");
            self.code[at] |= u64::from(distance as u16) << 16;
        }
        self.code
    }

    fn operate(&mut self, operation: u8, register: Register, operand: Operand, offset: i16) {
        match operand {
            Operand::Register(other) => self.emit(operation | FROM_REGISTER, register as u8, other as u8, offset, 0),
            Operand::Immediate(value) => self.emit(operation, register as u8, 0, offset, value),
        }
    }

    fn emit(&mut self, operation: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        let registers = u64::from(to) | u64::from(from) << 4;
        let (offset, immediate) = (u64::from(offset as u16), u64::from(immediate as u32));
        self.code.push(u64::from(operation) | registers << 8 | offset << 16 | immediate << 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Condition::Greater;
    use Operand::{Immediate, Register as Of};
    use Register::{R0, R1, R2, R3};

    /// As `llvm-objdump -d` shows the same instructions.
    #[test]
    fn instructions_are_those_of_the_standard() {
        let mut it = Assembler::default();
        let end = it.label();
        it.load(R2, Width::Word, R1, 4);
        it.add(R2, Immediate(-1));
        it.jump_if(R2, Greater, Of(R3), end);
        it.load_map(R1, 7);
        it.call(51);
        it.place(end);
        it.set(R0, Immediate(2));
        it.exit();
        let octets: Vec<[u8; 8]> = it.finish().into_iter().map(u64::to_le_bytes).collect();
        assert_eq!(
            octets,
            [
                [0x61, 0x12, 4, 0, 0, 0, 0, 0],
                [0x07, 0x02, 0, 0, 0xff, 0xff, 0xff, 0xff],
                [0x2d, 0x32, 3, 0, 0, 0, 0, 0],
                [0x18, 0x11, 0, 0, 7, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0, 0],
                [0x85, 0, 0, 0, 51, 0, 0, 0],
                [0xb7, 0, 0, 0, 2, 0, 0, 0],
                [0x95, 0, 0, 0, 0, 0, 0, 0],
            ]
        );
    }
}
