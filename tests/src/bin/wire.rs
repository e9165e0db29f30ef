//! Feeds the parsers of the broker's wire with records that were damaged at random, until so many octets were parsed.
//! None may panic, and what parses must be the only spelling of what it means.

use anyhow::{Result, ensure};
use clap::Parser;
use fastrand::Rng;
use underpass_broker::{
    Abilities, Answer, Ask, Counts, Freed, Inquiry, LONGEST, Refusal, Shape, Side, State, Verdict, header::Header,
    state,
};

#[derive(Parser)]
#[command(about = "Parse damaged records of the broker's wire")]
struct Options {
    /// Octets to parse
    #[arg(long, default_value_t = 100_000_000)]
    octets: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut random = Rng::with_seed(options.seed);
    let (mut octets, mut asks, mut answers, mut states, mut refused) = (0, 0u64, 0u64, 0u64, 0u64);
    while octets < options.octets {
        let packet = damaged(&mut random)?;
        octets += packet.len() as u64;
        let _ = Header::read(&packet);
        match Ask::parse(&packet) {
            Ok(it) => {
                ensure!(it.emit()?[..] == packet, "two spellings of an ask: {packet:?}");
                asks += 1;
            }
            Err(_) => refused += 1,
        }
        match Answer::parse(&packet) {
            Ok(it) => {
                let (record, len) = it.emit()?;
                ensure!(record[..len] == packet, "two spellings of an answer: {packet:?}");
                answers += 1;
            }
            Err(_) => refused += 1,
        }
        if let Ok(it) = Inquiry::parse(&packet) {
            ensure!(it.emit()[..] == packet, "two spellings of an inquiry: {packet:?}");
        }
        match State::parse(&packet) {
            Ok(it) => {
                ensure!(it.emit()[..] == packet, "two spellings of a state: {packet:?}");
                states += 1;
            }
            Err(_) => refused += 1,
        }
    }
    println!("{octets} octets: {asks} asks, {answers} answers and {states} states parsed, {refused} refusals to parse");
    ensure!(
        asks > 0 && answers > 0 && states > 0 && refused > 0,
        "the damage is too great, or too small, to tell anything"
    );
    Ok(())
}

/// A record, of which some octets are others, or some are missing or too many; or octets that were never a record.
fn damaged(random: &mut Rng) -> Result<Vec<u8>> {
    let mut packet = match random.u8(..8) {
        0 => (0..random.usize(..2 * LONGEST)).map(|_| random.u8(..)).collect(),
        1..4 => ask(random).emit()?.to_vec(),
        4 => state(random).emit().to_vec(),
        _ => {
            let (record, len) = answer(random)?.emit()?;
            record[..len].to_vec()
        }
    };
    for _ in 0..random.usize(..4) {
        let at = random.usize(..packet.len().max(1));
        if let Some(octet) = packet.get_mut(at) {
            *octet = if random.bool() { random.u8(..) } else { *octet ^ 1 << random.u8(..8) };
        }
    }
    if random.u8(..8) == 0 {
        packet.resize(random.usize(..2 * state::LEN), random.u8(..));
    }
    Ok(packet)
}

fn ask(random: &mut Rng) -> Ask {
    let freed = Freed { pool: random.u64(1..), slot: random.u32(..64), maker: random.u64(1..) };
    let ring_bytes = 1 << random.u32(16..=24);
    Ask { token: random.u64(..), mark: random.u64(..), ring_bytes, freed: random.bool().then_some(freed) }
}

fn state(random: &mut Rng) -> State {
    let mut counts = Counts { asks: random.u64(..), memory: random.u64(..), ..Counts::default() };
    counts.refuse(Refusal::ALL[random.usize(..Refusal::ALL.len())]);
    State {
        token: random.u64(..),
        mark: random.u64(..),
        abilities: Abilities { numbers: random.bool(), addresses: random.bool(), pidfd: random.bool() },
        policy: random.u64(..),
        network: random.bool().then(|| random.u64(1..)),
        seconds: random.u64(..),
        counts: random.bool().then_some(counts),
    }
}

fn answer(random: &mut Rng) -> Result<Answer> {
    let verdict = match random.u8(..5) {
        0 => Verdict::Waiting,
        4 => {
            let (shape, own) = (Shape::new(1 << random.u32(16..=24), 1)?, random.u64(1..u64::MAX));
            let key = [random.u64(1..), random.u64(..)];
            Verdict::Carried { pool: random.u64(1..), shape, cookies: [own, own + 1], key }
        }
        1 => Verdict::Refused(Refusal::ALL[random.usize(..Refusal::ALL.len())]),
        _ => {
            let shape = Shape::new(1 << random.u32(16..=24), random.u32(1..=Shape::MAX_SLOTS))?;
            let slot = random.u32(..shape.slots()) as u16;
            let side = if random.bool() { Side::Maker } else { Side::Joiner };
            let maker = random.u64(1..u64::MAX);
            Verdict::Met { pool: random.u64(1..), shape, slot, side, cookies: [maker, maker + 1] }
        }
    };
    Ok(Answer { token: random.u64(..), mark: random.u64(..), verdict })
}
