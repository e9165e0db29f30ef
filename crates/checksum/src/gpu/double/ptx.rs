//! Executes PTX: the instructions that the shipped kernels have, and no others.
//!
//! The threads of a block run one after the other, in an order that changes, each up to its next barrier. Shared memory
//! notices what depends on that order: two threads at one word between barriers, one of them writing, or a word that
//! nobody has written. What it does not show is time, and the order in memory between blocks or with the processor.

use std::collections::HashMap;

/// A kernel, ready to be run.
pub(super) struct Kernel {
    instructions: Vec<Instruction>,
    registers: usize,
    /// Octets of shared memory.
    shared: usize,
    most_threads: u32,
}

struct Instruction {
    /// The register that has to hold this.
    guard: Option<(usize, bool)>,
    operation: Operation,
    operands: Vec<Operand>,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Move,
    Add,
    Subtract,
    Multiply,
    MultiplyHigh,
    And,
    Or,
    ShiftLeft,
    ShiftRight,
    Select,
    Insert,
    DotProduct,
    Compare(fn(&u64, &u64) -> bool),
    Parameter,
    Load { shared: bool, octets: usize },
    Store { shared: bool, octets: usize },
    Branch,
    Barrier,
    Return,
}

enum Operand {
    /// With the number of bits that it holds.
    Register(usize, u32),
    Value(u64),
    Thread,
    Threads,
    Block,
    /// A register, or 0, and what is added to it.
    Address(Option<usize>, u64),
    Registers(Vec<usize>),
}

/// All kernels of this text, by name.
pub(super) fn parse(text: &str) -> HashMap<String, Kernel> {
    let kernels = text.split(".visible .entry ").skip(1);
    kernels.map(|text| (text[..text.find('(').unwrap()].to_string(), Kernel::parse(text))).collect()
}

impl Kernel {
    fn parse(text: &str) -> Kernel {
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
        let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        let most_threads = lines.iter().find_map(|line| line.strip_prefix(".maxntid ")).unwrap();
        let most_threads = most_threads.split(',').next().unwrap().parse().unwrap();
        let body = lines.iter().position(|&line| line == "{").unwrap() + 1;
        let mut names = Names::default();
        // Places first, since branches go ahead too.
        let (mut shared, mut count) = (0, 0);
        for line in &lines[body..] {
            if let Some(label) = line.strip_suffix(':') {
                names.places.insert(label.to_string(), count);
            } else if let Some(declared) = line.strip_prefix(".shared ") {
                let (name, octets) = declared.rsplit(' ').next().unwrap().split_once('[').unwrap();
                names.places.insert(name.to_string(), shared as u64);
                shared += octets.trim_end_matches("];").parse::<usize>().unwrap();
            } else if !line.starts_with(['.', '}']) {
                count += 1;
            }
        }
        let code = lines[body..].iter().filter(|line| !line.starts_with(['.', '}']) && !line.ends_with(':'));
        let instructions = code.map(|line| names.instruction(line.trim_end_matches(';'))).collect();
        Kernel { instructions, registers: names.registers.len(), shared, most_threads }
    }

    /// Runs one block. `check` is asked about every access to memory outside of it.
    pub(super) fn run(&self, block: u32, threads: u32, parameters: &[u64], check: impl Fn(u64, usize)) {
        assert!(threads <= self.most_threads && threads.is_power_of_two(), "a block of {threads} threads");
        let mut shared = vec![Word::default(); self.shared / 4];
        let registers = self.registers;
        let mut values = vec![0xdead_beef_dead_beef; registers * threads as usize];
        let mut places = vec![0; threads as usize];
        let mut order: Vec<u32> = (0..threads).collect();
        let mut random = fastrand::Rng::with_seed(block.into());
        for interval in 1.. {
            random.shuffle(&mut order);
            let mut returned = 0;
            for &thread in &order {
                let values = &mut values[thread as usize * registers..][..registers];
                let mut run =
                    Run { values, shared: &mut shared, thread, threads, block, interval, parameters, check: &check };
                places[thread as usize] = run.until_barrier(&self.instructions, places[thread as usize]);
                returned += u32::from(places[thread as usize] == usize::MAX);
            }
            if returned > 0 {
                assert_eq!(returned, threads, "some threads wait at a barrier to which others do not come");
                return;
            }
        }
    }
}

#[derive(Default)]
struct Names {
    registers: HashMap<String, usize>,
    /// Labels of instructions, and names of shared memory.
    places: HashMap<String, u64>,
}

impl Names {
    fn instruction(&mut self, line: &str) -> Instruction {
        let (guard, line) = match line.strip_prefix('@') {
            None => (None, line),
            Some(line) => {
                let (guard, line) = line.split_once(' ').unwrap();
                (Some((self.register(guard.trim_start_matches('!')), !guard.starts_with('!'))), line.trim())
            }
        };
        let (name, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let operation = match name {
            "mov.u32" | "mov.u64" | "cvta.to.global.u64" | "cvt.u64.u32" | "cvt.u32.u64" => Operation::Move,
            "add.s32" | "add.s64" => Operation::Add,
            "sub.s32" | "sub.s64" => Operation::Subtract,
            "mul.lo.s32" | "mul.lo.s64" | "mul.wide.u32" => Operation::Multiply,
            "mul.hi.u64" => Operation::MultiplyHigh,
            "and.b32" | "and.b64" | "and.pred" => Operation::And,
            "or.b32" | "or.b64" | "or.pred" => Operation::Or,
            "shl.b32" => Operation::ShiftLeft,
            "shr.u32" | "shr.u64" => Operation::ShiftRight,
            "selp.b32" => Operation::Select,
            "bfi.b64" => Operation::Insert,
            "dp4a.u32.u32" => Operation::DotProduct,
            "setp.eq.s32" | "setp.eq.b64" => Operation::Compare(u64::eq),
            "setp.ne.s32" => Operation::Compare(u64::ne),
            "setp.lt.u32" => Operation::Compare(u64::lt),
            "setp.le.u32" => Operation::Compare(u64::le),
            "setp.gt.u32" => Operation::Compare(u64::gt),
            "setp.ge.u32" => Operation::Compare(u64::ge),
            "ld.param.u32" | "ld.param.u64" => Operation::Parameter,
            "ld.shared.u32" => Operation::Load { shared: true, octets: 4 },
            "st.shared.u32" => Operation::Store { shared: true, octets: 4 },
            "ld.v4.u32" | "ld.global.v2.u32" | "ld.global.u32" => Operation::Load { shared: false, octets: 4 },
            "ld.global.u64" => Operation::Load { shared: false, octets: 8 },
            "st.volatile.global.u64" => Operation::Store { shared: false, octets: 8 },
            "bra" | "bra.uni" => Operation::Branch,
            "bar.sync" => Operation::Barrier,
            "ret" => Operation::Return,
            _ => panic!("the double does not know {name}: {line}"),
        };
        Instruction { guard, operation, operands: self.operands(operands) }
    }

    fn operands(&mut self, text: &str) -> Vec<Operand> {
        let mut operands = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end =
                if rest.starts_with('{') { rest.find('}').unwrap() + 1 } else { rest.find(',').unwrap_or(rest.len()) };
            operands.push(self.operand(&rest[..end]));
            rest = rest[end..].trim_start_matches([',', ' ']);
        }
        operands
    }

    fn operand(&mut self, text: &str) -> Operand {
        if let Some(registers) = text.strip_prefix('{') {
            let registers = registers.trim_end_matches('}').split(", ");
            return Operand::Registers(registers.map(|name| self.register(name)).collect());
        }
        if let Some(address) = text.strip_prefix('[') {
            let address = address.trim_end_matches(']');
            let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
            let offset = number(offset).unwrap();
            return match (base.starts_with('%'), base.rsplit_once("_param_")) {
                (true, _) => Operand::Address(Some(self.register(base)), offset),
                (false, Some((_, at))) => Operand::Value(number(at).unwrap()),
                (false, None) => Operand::Address(None, self.places[base] + offset),
            };
        }
        match text {
            "%tid.x" => Operand::Thread,
            "%ntid.x" => Operand::Threads,
            "%ctaid.x" => Operand::Block,
            _ if text.starts_with('%') => {
                let bits = if text.starts_with("%rd") {
                    64
                } else if text.starts_with("%r") {
                    32
                } else {
                    1
                };
                Operand::Register(self.register(text), bits)
            }
            _ => Operand::Value(number(text).unwrap_or_else(|| self.places[text])),
        }
    }

    fn register(&mut self, name: &str) -> usize {
        let next = self.registers.len();
        *self.registers.entry(name.to_string()).or_insert(next)
    }
}

fn number(text: &str) -> Option<u64> {
    text.parse::<i64>().map(|it| it as u64).or_else(|_| text.parse()).ok()
}

/// A word of shared memory, and which threads were there since which barrier.
#[derive(Clone, Default)]
struct Word {
    value: u32,
    written: Option<(u32, u32)>,
    read: Option<(u32, u32)>,
}

/// A thread between two barriers.
struct Run<'a, F> {
    values: &'a mut [u64],
    shared: &'a mut [Word],
    thread: u32,
    threads: u32,
    block: u32,
    interval: u32,
    parameters: &'a [u64],
    check: &'a F,
}

impl<F: Fn(u64, usize)> Run<'_, F> {
    /// Where it goes on behind the barrier; nowhere once it has returned.
    fn until_barrier(&mut self, instructions: &[Instruction], mut place: usize) -> usize {
        loop {
            let instruction = &instructions[place];
            place += 1;
            if instruction.guard.is_some_and(|(register, wanted)| (self.values[register] == 1) != wanted) {
                continue;
            }
            match instruction.operation {
                Operation::Branch => place = self.get(&instruction.operands[0]) as usize,
                Operation::Barrier => return place,
                Operation::Return => return usize::MAX,
                operation => self.execute(operation, &instruction.operands),
            }
        }
    }

    fn execute(&mut self, operation: Operation, operands: &[Operand]) {
        // An operand is as wide as the other, or as its own register.
        let width = |of: &[Operand]| {
            of.iter().find_map(|it| if let Operand::Register(_, bits) = it { Some(*bits) } else { None })
        };
        let bits = width(operands.get(1..).unwrap_or_default()).or(width(operands)).unwrap_or(64);
        let get = |at: usize| masked(self.get(&operands[at]), bits);
        let value = match operation {
            Operation::Move => get(1),
            Operation::Add => get(1).wrapping_add(get(2)),
            Operation::Subtract => get(1).wrapping_sub(get(2)),
            Operation::Multiply => get(1).wrapping_mul(get(2)),
            Operation::MultiplyHigh => ((u128::from(get(1)) * u128::from(get(2))) >> 64) as u64,
            Operation::And => get(1) & get(2),
            Operation::Or => get(1) | get(2),
            // By more bits than there are, nothing is left.
            Operation::ShiftLeft => get(1).checked_shl(get(2) as u32).unwrap_or(0),
            Operation::ShiftRight => get(1).checked_shr(self.get(&operands[2]) as u32).unwrap_or(0),
            Operation::Select => self.get(&operands[if self.get(&operands[3]) == 1 { 1 } else { 2 }]),
            Operation::Insert => {
                let mask = ((1 << get(4)) - 1) << get(3);
                get(2) & !mask | get(1) << get(3) & mask
            }
            Operation::DotProduct => {
                let products = (0..4).map(|at| (get(1) >> (8 * at) & 0xff) * (get(2) >> (8 * at) & 0xff));
                products.sum::<u64>() + get(3)
            }
            Operation::Compare(compare) => u64::from(compare(&get(1), &get(2))),
            Operation::Parameter => self.parameters[self.get(&operands[1]) as usize],
            Operation::Load { shared, octets } => return self.load(shared, octets, operands),
            Operation::Store { shared, octets } => return self.store(shared, octets, operands),
            Operation::Branch | Operation::Barrier | Operation::Return => return,
        };
        self.set(&operands[0], value);
    }

    fn load(&mut self, shared: bool, octets: usize, operands: &[Operand]) {
        let address = self.get(&operands[1]);
        let single;
        let registers = match &operands[0] {
            Operand::Registers(registers) => &registers[..],
            Operand::Register(register, _) => {
                single = [*register];
                &single
            }
            _ => panic!("a load into what is no register"),
        };
        let whole = octets * registers.len();
        assert!(address.is_multiple_of(whole as u64), "a load of {whole} octets from {address:#x}");
        if !shared {
            (self.check)(address, whole);
        }
        for (at, &register) in registers.iter().enumerate() {
            let address = address + (at * octets) as u64;
            self.values[register] = match (shared, octets) {
                (true, _) => self.read(address as usize / 4).into(),
                // SAFETY: it was checked, and is aligned.
                (false, 4) => u64::from(unsafe { (address as *const u32).read() }),
                // SAFETY: as above.
                (false, _) => unsafe { (address as *const u64).read() },
            };
        }
    }

    fn store(&mut self, shared: bool, octets: usize, operands: &[Operand]) {
        let (address, value) = (self.get(&operands[0]), self.get(&operands[1]));
        assert!(address.is_multiple_of(octets as u64), "a store of {octets} octets to {address:#x}");
        if shared {
            return self.write(address as usize / 4, value as u32);
        }
        (self.check)(address, octets);
        // SAFETY: it was checked, and is aligned.
        unsafe { (address as *mut u64).write(value) };
    }

    fn read(&mut self, at: usize) -> u32 {
        let (now, word) = ((self.interval, self.thread), &mut self.shared[at]);
        let written = word.written.unwrap_or_else(|| panic!("shared word {at} is read before it is written"));
        assert!(written.0 != now.0 || written == now, "threads {} and {} race for shared word {at}", now.1, written.1);
        word.read = Some(now);
        word.value
    }

    fn write(&mut self, at: usize, value: u32) {
        let (now, word) = ((self.interval, self.thread), &mut self.shared[at]);
        for other in [word.read, word.written].into_iter().flatten() {
            assert!(other.0 != now.0 || other == now, "threads {} and {} race for shared word {at}", now.1, other.1);
        }
        (word.value, word.written) = (value, Some(now));
    }

    fn get(&self, operand: &Operand) -> u64 {
        match operand {
            Operand::Register(register, _) => self.values[*register],
            Operand::Value(value) => *value,
            Operand::Thread => self.thread.into(),
            Operand::Threads => self.threads.into(),
            Operand::Block => self.block.into(),
            Operand::Address(base, offset) => base.map_or(0, |register| self.values[register]).wrapping_add(*offset),
            Operand::Registers(_) => panic!("several registers where one is read"),
        }
    }

    fn set(&mut self, operand: &Operand, value: u64) {
        let Operand::Register(register, bits) = operand else { panic!("a result for what is no register") };
        self.values[*register] = masked(value, *bits);
    }
}

fn masked(value: u64, bits: u32) -> u64 {
    value & u64::MAX >> (64 - bits)
}
