//! A stack whose link is replaced goes on: its connections stay, and nothing is lost for good.

use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::service::{Cep, Indication, Peer, Request, Time};
use underpass_engine::stack::Stack;
use underpass_engine::transport::{Config, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

const GEOMETRY: Geometry = Geometry { frames: 256, frame_size: 2048, headroom: 128 };
const TSDUS: u32 = 300;

type AnyLink = Box<dyn Link>;

fn address(own: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, own])
}

fn stack(own: u8, arena: &Arena, all: &mut Vec<Buffer>, mut link: AnyLink) -> Stack<AnyLink> {
    let network = Inactive::new(arena.clone(), address(own));
    all.split_off(all.len() - 64).into_iter().for_each(|it| link.fill(it));
    let pool = all.split_off(all.len() - 32).into_iter().collect();
    let transport = Transport::new(Config::default(), arena.clone(), pool, Time(0));
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(network), Box::new(transport)];
    Stack::new(link, layers)
}

fn links(arenas: [&Arena; 2]) -> [AnyLink; 2] {
    Loopback::copying(arenas, 1500).map(|it| Box::new(it) as AnyLink)
}

#[test]
fn a_link_is_replaced_under_a_living_connection() {
    let [(one, mut free), (two, mut others)] = [(); 2].map(|()| Arena::new(GEOMETRY));
    let [near, far] = links([&one, &two]);
    let mut near = stack(0, &one, &mut free, near);
    let mut far = stack(1, &two, &mut others, far);
    let all = free.len();
    // Peers are taken while it runs.
    let to = near.layer::<Inactive>().expect("a network").peer(address(1));
    assert_eq!(far.layer::<Inactive>().expect("a network").peer(address(0)), Peer(0));
    near.request(Request::Connect { tag: 0, to, details: Box::default() }, Time(0));
    let (mut open, mut sent, mut came): (Option<Cep>, u32, u32) = (None, 0, 0);
    let mut replaced = 0;
    for step in 1u64.. {
        let now = Time(step * 50_000);
        near.poll(now);
        // Now and then the cable is another one, whatever is on its way over the old one.
        if step.is_multiple_of(40) && came < TSDUS {
            let [a, b] = links([&one, &two]);
            // First the end that has what is on its way, so that the other one gets its buffers back.
            far.replace(b, now);
            near.replace(a, now);
            replaced += 1;
        }
        far.poll(now);
        while let Some(indication) = far.indication() {
            match indication {
                Indication::Connect { cep, .. } => far.request(Request::Accept { cep, user_data: Vec::new() }, now),
                Indication::Data { buffer, .. } => {
                    assert_eq!(two.octets(&buffer), came.to_be_bytes());
                    came += 1;
                    far.request(Request::Return { buffer }, now);
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = near.indication() {
            match indication {
                Indication::Confirm { cep, .. } => open = Some(cep),
                Indication::Complete { buffer, .. } => free.push(buffer),
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if let (Some(cep), true) = (open, sent < TSDUS)
            && let Some(mut buffer) = free.pop()
        {
            one.room(&mut buffer)[..4].copy_from_slice(&sent.to_be_bytes());
            one.fill(&mut buffer, 4);
            sent += 1;
            near.request(Request::Data { cep, buffer, end: true }, now);
        }
        if came == TSDUS && free.len() == all {
            break;
        }
        assert!(now.0 < 60_000_000_000, "{came} of {sent} have come, {} of {all} buffers are back", free.len());
    }
    assert!(replaced > 5, "{replaced}");
    // Taking the stack apart returns every buffer that was its link's.
    let (layers, returned) = near.close();
    assert_eq!((layers.len(), returned.given.len(), returned.lent.len()), (2, 64, 0));
}
