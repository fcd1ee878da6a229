//! How ACK and NACK name a delivery, version by version.

use crate::world::{World, in_every_cut};

fn delivered(
    world: &mut World,
    version: &str,
    ack: &str,
    bodies: &[&str],
) -> (usize, Vec<crate::world::Received>) {
    let client = world.connect(version);
    world.send(client, &format!("SUBSCRIBE\nid:sub 1\ndestination:/queue/q\nack:{ack}\n\n\0"));
    world.fill("q", bodies);
    let frames = world.frames(client);
    assert_eq!(frames.len(), bodies.len());
    (client, frames)
}

#[test]
fn the_token_of_1_2_is_opaque_and_no_other_version_has_one() {
    in_every_cut(|world| {
        for (version, has_token) in [("1.0", false), ("1.1", false), ("1.2", true)] {
            let (client, frames) = delivered(world, version, "client-individual", &["a"]);
            let token = frames[0].header("ack").map(str::to_owned);
            assert_eq!(token.is_some(), has_token, "m_01, c_61b {version}");
            if let Some(token) = token {
                assert_ne!(token, frames[0].need("message-id"));
                let dashes: Vec<usize> = token.match_indices('-').map(|(at, _)| at).collect();
                assert_eq!((token.len(), dashes), (36, vec![8, 13, 18, 23]), "a UUID: {token}");
            }
            world.broker.acked.clear();
            world.cut_off(client);
            let rest = world.connect("1.2");
            world.send(rest, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
            world.cut_off(rest);
        }
    });
}

#[test]
fn ac_01_ac_02_1_2_by_token() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.2", "client-individual", &["a", "b"]);
        world.send(client, &format!("ACK\nid:{}\nreceipt:r\n\n\0", frames[1].need("ack")));
        world.expect_receipt(client, "r");
        assert_eq!(world.broker.acked, ["b"]);
        // Clients copy all headers of MESSAGE into their ACK (c_15).
        world.send(client, &format!("ACK\nid:{}\ncontent-length:500\n\n\0", frames[0].need("ack")));
        assert_eq!(world.broker.acked, ["b", "a"]);
    });
}

#[test]
fn c_05_1_2_needs_id() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.2", "client-individual", &["a"]);
        world.send(client, &format!("ACK\nmessage-id:{}\nreceipt:r\n\n\0", frames[0].need("message-id")));
        let error = world.expect_error(client, "missing header");
        assert!(error.text().contains("\"id\""), "{error:?}");
        assert_eq!(error.header("receipt-id"), Some("r"));
    });
}

#[test]
fn c_61_1_2_takes_the_message_id_for_the_token() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.2", "client-individual", &["a"]);
        world.send(client, &format!("ACK\nid:{}\n\n\0", frames[0].need("message-id")));
        assert_eq!(world.broker.acked, ["a"]);
    });
}

#[test]
fn ac_01_1_1_by_message_id_and_subscription() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.1", "client-individual", &["a", "b"]);
        let id = frames[1].need("message-id");
        world.send(client, &format!("ACK\nmessage-id:{id}\nsubscription:other\nreceipt:r1\n\n\0"));
        world.expect_receipt(client, "r1");
        assert!(world.broker.acked.is_empty(), "not without its subscription");
        world.send(client, &format!("ACK\nmessage-id:{id}\nsubscription:sub 1\nreceipt:r2\n\n\0"));
        world.expect_receipt(client, "r2");
        assert_eq!(world.broker.acked, ["b"]);
        let id = frames[0].need("message-id");
        world.send(client, &format!("NACK\nmessage-id:{id}\nsubscription:sub 1\n\n\0"));
        assert_eq!(world.broker.settled.last().unwrap().nack.len(), 1);
    });
}

#[test]
fn ac_01_1_1_needs_both_headers() {
    in_every_cut(|world| {
        for command in ["ACK", "NACK"] {
            for (lines, missing) in [("message-id:x\n", "subscription"), ("subscription:x\n", "message-id")] {
                let client = world.connect("1.1");
                world.send(client, &format!("{command}\n{lines}\n\0"));
                let error = world.expect_error(client, "missing header");
                assert!(error.text().contains(missing) && error.text().contains(command), "{error:?}");
            }
        }
    });
}

#[test]
fn ac_01_1_0_by_message_id_alone() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.0", "client", &["a", "b", "c"]);
        world.send(client, &format!("ACK\nmessage-id:{}\nreceipt:r\n\n\0", frames[1].need("message-id")));
        world.expect_receipt(client, "r");
        assert_eq!(world.broker.acked, ["a", "b"], "cumulative as in every version");
        // None carries it: nothing is settled, not even the oldest.
        world.send(client, "ACK\nmessage-id:nobody's\nreceipt:r\n\n\0");
        world.expect_receipt(client, "r");
        assert_eq!(world.broker.reserved(), ["c"]);
    });
}

#[test]
fn a_1_0_client_that_acks_in_order_settles_the_oldest() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.0", "client-individual", &["a", "b", "c"]);
        for (frame, settled) in frames.iter().zip(["a", "b", "c"]) {
            world.send(client, &format!("ACK\nmessage-id:{}\n\n\0", frame.need("message-id")));
            assert_eq!(world.broker.acked.last().map(String::as_str), Some(settled));
        }
    });
}

#[test]
fn lenient_1_0_takes_client_individual_and_nack() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.0", "client-individual", &["a", "b"]);
        world.send(client, &format!("NACK\nmessage-id:{}\nreceipt:r\n\n\0", frames[0].need("message-id")));
        assert_eq!(world.frames(client)[0].header("receipt-id"), Some("r"));
        let settled = world.broker.settled.last().unwrap();
        assert_eq!((settled.nack.len(), settled.ack.len()), (1, 0));
        assert_eq!(world.closed(client), None);
    });
}

#[test]
fn tokens_of_other_connections_are_ignored() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.2", "client-individual", &["a"]);
        let other = world.connect("1.2");
        for id in [frames[0].need("ack"), frames[0].need("message-id"), "nonsense".into()] {
            for command in ["ACK", "NACK"] {
                world.send(other, &format!("{command}\nid:{id}\nreceipt:r\n\n\0"));
                world.expect_receipt(other, "r");
            }
        }
        assert!(world.broker.settled.is_empty());
        assert_eq!(world.session(other).counters().acks_ignored, 6, "and counted");
        assert_eq!((world.closed(other), world.closed(client)), (None, None));
    });
}

#[test]
fn an_ack_on_an_auto_subscription_is_a_counted_no_op() {
    in_every_cut(|world| {
        for (version, ack) in [
            ("1.0", "ACK\nmessage-id:{id}"),
            ("1.1", "ACK\nmessage-id:{id}\nsubscription:sub 1"),
            ("1.2", "ACK\nid:{id}"),
        ] {
            let (client, frames) = delivered(world, version, "auto", &["a"]);
            let before = world.broker.settled.len();
            let ack = ack.replace("{id}", &frames[0].need("message-id"));
            world.send(client, &format!("{ack}\nreceipt:r\n\n\0"));
            world.expect_receipt(client, "r");
            assert_eq!(world.session(client).counters().acks_ignored, 1, "{version}");
            assert_eq!(world.broker.settled.len(), before);
            world.cut_off(client);
        }
    });
}

#[test]
fn acking_twice_changes_nothing() {
    in_every_cut(|world| {
        let (client, frames) = delivered(world, "1.2", "client-individual", &["a"]);
        let ack = format!("ACK\nid:{}\nreceipt:r\n\n\0", frames[0].need("ack"));
        world.send(client, &format!("{ack}{ack}"));
        assert_eq!(world.frames(client).len(), 2, "both are answered");
        assert_eq!(world.broker.acked, ["a"]);
        assert_eq!(world.session(client).counters().acks_ignored, 1);
    });
}

#[test]
fn m_02_c_41_two_subscriptions_never_share_a_name() {
    in_every_cut(|world| {
        let client = world.connect("1.2");
        for id in ["1", "2"] {
            world.send(
                client,
                &format!(
                    "SUBSCRIBE\nid:{id}\ndestination:/queue/q\nack:client-individual\nprefetch-count:1\n\n\0"
                ),
            );
        }
        world.fill("q", &["a", "b"]);
        let frames = world.frames(client);
        let mut names: Vec<String> =
            frames.iter().flat_map(|frame| [frame.need("message-id"), frame.need("ack")]).collect();
        names.sort();
        names.dedup();
        assert_eq!((frames.len(), names.len()), (2, 4), "su_05: the two split the queue");
        world.send(client, &format!("ACK\nid:{}\n\n\0", frames[0].need("ack")));
        assert_eq!(world.broker.acked.len(), 1);
    });
}

#[test]
fn c_58_ids_with_colons_round_trip() {
    in_every_cut(|world| {
        for version in ["1.1", "1.2"] {
            let client = world.connect(version);
            world.send(client, "SUBSCRIBE\nid:a\\cb\\\\c\ndestination:/queue/q\nack:client-individual\n\n\0");
            world.fill("q", &["x"]);
            let frame = world.next(client);
            assert_eq!(frame.header("subscription"), Some("a:b\\c"));
            let id = frame.need("message-id");
            if version == "1.1" {
                world.send(client, &format!("ACK\nmessage-id:{id}\nsubscription:a\\cb\\\\c\n\n\0"));
            } else {
                world.send(client, &format!("ACK\nid:{}\n\n\0", frame.need("ack")));
            }
            assert_eq!(world.broker.acked.pop().as_deref(), Some("x"));
            world.cut_off(client);
        }
    });
}
