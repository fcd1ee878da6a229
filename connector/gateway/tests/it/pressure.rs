//! Bounds: unconfirmed publishes, unwritten output, slow and stuck clients.

use berth_gateway::Session;
use berth_types::limits::{OUTPUT_BYTES_MAX, UNCONFIRMED_BYTES_MAX, UNCONFIRMED_PUBLISHES_MAX};

use crate::world::{Cut, World, in_every_cut, secs};

#[test]
fn unconfirmed_publishes_are_bounded_and_the_rest_waits_in_order() {
    let mut world = World::new(Cut::Whole);
    let client = world.connect("1.2");
    world.broker.holds_confirms = true;
    let total = UNCONFIRMED_PUBLISHES_MAX + 500;
    let sends: String =
        (0..total).map(|n| format!("SEND\ndestination:/queue/q\nreceipt:{n}\n\n{n}\0")).collect();
    world.send(client, &sends);
    assert_eq!(world.broker.ready("q").len(), UNCONFIRMED_PUBLISHES_MAX);
    assert!(!world.session(client).wants_input());
    world.broker.release_confirms();
    world.run();
    assert!(world.session(client).wants_input());
    let receipts: Vec<String> = world.frames(client).iter().map(|frame| frame.need("receipt-id")).collect();
    assert_eq!(receipts, (0..total).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(world.broker.ready("q").len(), total, "c_13");
}

#[test]
fn unconfirmed_bytes_are_bounded() {
    let mut world = World::new(Cut::Whole);
    let client = world.connect("1.2");
    world.broker.holds_confirms = true;
    let body = "x".repeat(1024 * 1024);
    let fits = UNCONFIRMED_BYTES_MAX / body.len();
    for _ in 0..fits + 5 {
        world.send(client, &format!("SEND\ndestination:/queue/q\n\n{body}\0"));
    }
    let taken = world.broker.ready("q").len();
    assert!((fits..=fits + 1).contains(&taken), "one message may go over: {taken}");
    assert!(!world.session(client).wants_input());
    world.broker.release_confirms();
    world.run();
    assert_eq!(world.broker.ready("q").len(), fits + 5);
}

#[test]
fn receipts_owed_are_bounded_too() {
    let mut world = World::new(Cut::Whole);
    let client = world.connect("1.2");
    world.broker.holds_confirms = true;
    world.send(client, "SEND\ndestination:/queue/q\nreceipt:first\n\nx\0");
    let receipt = "r".repeat(8000);
    let acks = format!("ACK\nid:none\nreceipt:{receipt}\n\n\0");
    for _ in 0..2_000 {
        world.send(client, &acks);
    }
    assert!(!world.session(client).wants_input(), "16 MB of receipts are not kept for it");
    world.broker.release_confirms();
    world.run();
    assert_eq!(world.frames(client).len(), 2_001);
}

#[test]
fn deadlines_and_beats_rest_while_we_do_not_read() {
    let mut world = World::new(Cut::Whole);
    let client = world.accept();
    world.send(client, "CONNECT\naccept-version:1.2\nheart-beat:10000,0\n\n\0");
    world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/mine\nack:client-individual\n\n\0");
    world.fill("mine", &["a"]);
    let token = world.frames(client)[1].need("ack");
    world.broker.holds_confirms = true;
    let sends = "SEND\ndestination:/queue/q\n\nx\0".repeat(UNCONFIRMED_PUBLISHES_MAX);
    world.send(client, &format!("{sends}ACK\nid:{token}\nreceipt:r\n\n\0"));
    assert!(!world.session(client).wants_input());
    world.pass(secs(1_000));
    assert_eq!(world.closed(client), None, "hb_09");
    assert_eq!(world.session(client).counters().ack_timeouts, 0);
    world.broker.release_confirms();
    world.run();
    assert_eq!(world.broker.acked, ["a"], "what had arrived is processed before the next sweep");
    world.expect_receipt(client, "r");
}

#[test]
fn l_09_a_client_that_does_not_read_is_not_read_and_costs_a_bounded_output() {
    let mut world = World::new(Cut::Whole);
    let body = "x".repeat(100_000);
    let bodies = vec![body.as_str(); 100];
    world.fill("q", &bodies);
    let client = world.connect("1.2");
    world.set_room(client, Some(0));
    world.send(client, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nprefetch-count:0\n\n\0");
    let reserved = world.broker.reserved().len();
    // The broker in memory knows no max_bytes: one reservation takes all. Nothing more is reserved, though.
    world.fill("q", &bodies);
    assert_eq!(world.broker.ready("q").len(), 100);
    assert_eq!(reserved, 100);
    assert!(!world.session(client).wants_input(), "c_65c");
    world.send(client, "SEND\ndestination:/queue/other\nreceipt:r\n\nx\0");
    assert!(world.broker.ready("other").is_empty());
    world.set_room(client, None);
    assert_eq!(world.broker.ready("other"), ["x"]);
    let frames = world.frames(client);
    assert_eq!(frames.iter().filter(|frame| frame.text() == body).count(), 200);
    const { assert!(OUTPUT_BYTES_MAX < 10_000_000) };
}

#[test]
fn one_stuck_reader_does_not_hold_up_others() {
    in_every_cut(|world| {
        let stuck = world.connect("1.2");
        world.set_room(stuck, Some(0));
        world.send(stuck, "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nprefetch-count:1\n\n\0");
        let other = world.connect("1.2");
        world.send(other, "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0");
        world.fill("q", &["a", "b", "c"]);
        assert_eq!(world.bodies(other), ["b", "c"]);
        world.pass(std::time::Duration::from_millis(31_002));
        assert_eq!(world.bodies(other), ["a"], "taken back from who does not read");
    });
}

#[test]
fn hostile_input_gets_an_error_and_bounded_memory() {
    for (name, piece, pieces) in [
        ("one header line without end", "v".repeat(1_000), 10_000),
        ("headers without end", "k:v\n".repeat(100), 2_000),
    ] {
        let mut world = World::new(Cut::Whole);
        let client = world.connect("1.2");
        world.send(client, "SEND\nk:v");
        let mut fed = 0;
        while world.closed(client).is_none() && fed < pieces {
            world.send(client, &piece);
            fed += 1;
        }
        assert!(fed * piece.len() < 20_000, "{name}: {fed}");
        assert_eq!(world.next(client).command, berth_stomp::Command::Error);
    }
    let mut world = World::new(Cut::Whole);
    let client = world.connect("1.2");
    world.send(client, "SEND\ndestination:/queue/q\ncontent-length:100000000000\nreceipt:r\n\n");
    let error = world.expect_error(client, "message too large");
    assert!(error.text().contains("maxBodySize") && error.text().contains("100000000000"), "c_75");
    assert_eq!(error.header("receipt-id"), Some("r"));
    let before_login = world.accept();
    world.send(before_login, &format!("CONNECT\nlogin:{}", "x".repeat(10_000)));
    world.expect_error(before_login, "header line too long");
}

#[test]
fn an_idle_connection_is_small() {
    let mut world = World::new(Cut::Whole);
    let client = world.connect("1.2");
    let bytes = size_of_val(world.session(client));
    assert!(bytes <= 2048, "{bytes} bytes; ten thousand of them must fit");
}

#[test]
fn without_memory_nothing_is_read_and_the_clients_clocks_rest() {
    let mut world = World::new(Cut::Whole);
    let client = world.accept();
    world.send(client, "CONNECT\naccept-version:1.2\nhost:/\nheart-beat:1000,0\n\n\0");
    world.next(client);
    let now = world.now();
    world.session(client).handle_memory(now, false);
    assert!(!world.session(client).wants_input());
    world.send(client, "SEND\ndestination:/queue/q\nreceipt:r\n\nx\0");
    world.pass(secs(60));
    world.nothing(client);
    let now = world.now();
    world.session(client).handle_memory(now, true);
    world.run();
    world.expect_receipt(client, "r");
}

#[test]
fn one_that_must_go_is_answered_what_it_sent_and_then_told() {
    let mut world = World::new(Cut::Whole);
    let client = world.connect("1.2");
    world.broker.holds_confirms = true;
    world.send(client, "SEND\ndestination:/queue/q\nreceipt:r\n\nx\0SEND\ndestination:/queue/q\n\nhalf");
    let now = world.now();
    world.session(client).handle_memory(now, false);
    world.session(client).handle_overload(now);
    world.session(client).handle_overload(now);
    world.broker.release_confirms();
    world.run();
    let frames = world.frames(client);
    assert_eq!(frames.len(), 2, "{frames:?}");
    assert_eq!(frames[0].header("receipt-id"), Some("r"));
    assert_eq!(frames[1].header("message"), Some("server busy"));
    assert!(world.closed(client).is_some());
    assert_eq!(world.broker.ready("q").len(), 1);
}
