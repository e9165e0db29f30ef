//! How connections begin and end where the other end says nothing, or something else than was offered.

use super::entity::{Entity, THEIRS, cr};
use super::{MS, OTHER, SECOND, config, dr};
use underpass_engine::service::{Details, Indication, Request};
use underpass_engine::transport::Config;
use underpass_engine::wire::tpdu::*;
use underpass_link::arena::Geometry;

/// Its answer may be what has got lost, so the other end is told that nothing comes of a CR that is given up, until it
/// confirms that or N is reached (X.224 §6.7). Otherwise it would take a later CR with this reference for a copy.
#[test]
fn a_cr_that_is_given_up_is_taken_back() {
    for confirms in [false, true] {
        let mut entity = Entity::new(config());
        entity.connect(OTHER, Details::default());
        entity.run(SECOND);
        assert!(matches!(entity.told[..], [Indication::Refused { tag: 1, .. }]), "{:?}", entity.told);
        let said = entity.said();
        let (requests, releases) = said.split_at(8);
        assert!(requests.iter().all(|it| it.starts_with("CR 0x0001")), "{said:?}");
        assert!(releases.len() > 1 && releases.iter().all(|it| it.starts_with("DR 0x0001 → 0x0000")), "{said:?}");
        if confirms {
            let dc = DisconnectConfirm { dst_ref: 1, src_ref: 0, checksum: true };
            entity.hear(OTHER, &Tpdu::Dc(dc), &[]);
            assert_eq!(entity.connections(), 0);
        }
        entity.run(2 * SECOND);
        assert_eq!((entity.said().len(), entity.connections()), (if confirms { 0 } else { 4 }, 0));
        assert_eq!(entity.told.len(), 1, "{:?}", entity.told);
    }
}

/// What the other end makes of that: a CR with the same reference is another request from then on.
#[test]
fn a_cr_behind_one_that_was_taken_back_is_another() {
    let mut entity = Entity::new(config());
    for accepts in [false, true] {
        entity.hear(OTHER, &Tpdu::Cr(cr()), &[]);
        let Some(Indication::Connect { cep, .. }) = entity.told.pop() else { panic!("{:?}", entity.told) };
        if accepts {
            entity.request(Request::Accept { cep, user_data: Vec::new() });
        }
        entity.hear(OTHER, &Tpdu::Dr(dr(0)), &[]);
        let Some(Indication::Disconnect { cep: it, .. }) = entity.told.pop() else { panic!("{:?}", entity.told) };
        assert_eq!((it, entity.connections()), (cep, 0));
    }
}

/// A CC of another TPDU size than was offered is refused by a DR, which goes until it is confirmed, or in class 2 until
/// it has left: there the other end is open already, and would wait for ever.
#[test]
fn a_cc_that_is_refused_is_released() {
    for class in [Class::Two, Class::Four] {
        let checksum = class == Class::Four;
        let config = Config { class, checksum, ..config() };
        let mut entity = Entity::over(config, Geometry { frames: 16, frame_size: 512, headroom: 128 }, 1);
        entity.keeps = true;
        entity.connect(OTHER, Details::default());
        let options = Some(AdditionalOptions(if checksum { 0 } else { AdditionalOptions::NO_CHECKSUM }));
        let parameters = Parameters { preferred_size: Some(100), options, ..Parameters::default() };
        entity.hear(OTHER, &Tpdu::Cc(Connect { dst_ref: 1, class, checksum, parameters, ..cr() }), &[]);
        assert!(
            matches!(entity.told[..], [Indication::Refused { reason: Reason::NEGOTIATION_FAILED, .. }]),
            "{:?}",
            entity.told
        );
        // Its only buffer has the CR.
        let said = entity.said();
        assert!(said.len() == 1 && said[0].starts_with("CR"), "{said:?}");
        entity.keeps = false;
        entity.complete(1);
        entity.run(50 * MS);
        let said = entity.said();
        assert!(said.iter().all(|it| it.starts_with("DR 0x0001 → 0x004d")), "{said:?}");
        assert_eq!(said.len(), if class == Class::Two { 1 } else { 3 }, "{said:?}");
        let dc = DisconnectConfirm { dst_ref: 1, src_ref: THEIRS, checksum };
        entity.hear(OTHER, &Tpdu::Dc(dc), &[]);
        assert_eq!((entity.connections(), entity.told.len()), (0, 1));
    }
}

/// A CC that crosses the DR of a given-up CR is answered by a DR that names its connection: in class 2 the other end is
/// open by then, and would stay so for ever.
#[test]
fn a_cc_that_crosses_the_dr_is_released() {
    let checksum = false;
    let mut entity = Entity::new(Config { class: Class::Two, checksum, ..config() });
    entity.connect(OTHER, Details::default());
    while !entity.said().iter().any(|it| it.starts_with("DR")) {
        entity.run(50 * MS);
    }
    let options = Some(AdditionalOptions(AdditionalOptions::NO_CHECKSUM));
    let parameters = Parameters { preferred_size: Some(2), options, ..Parameters::default() };
    entity.hear(OTHER, &Tpdu::Cc(Connect { dst_ref: 1, class: Class::Two, checksum, parameters, ..cr() }), &[]);
    let said = entity.said();
    assert!(said.len() == 1 && said[0].starts_with("DR 0x0001 → 0x004d"), "{said:?}");
    entity.hear(OTHER, &Tpdu::Dc(DisconnectConfirm { dst_ref: 1, src_ref: THEIRS, checksum }), &[]);
    assert_eq!(entity.connections(), 0);
}
