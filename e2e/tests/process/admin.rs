//! The admin port.

use berth_e2e::process::{PATIENCE, Server, http, run};
use berth_e2e::stomp::Client;
use std::fs;
use std::time::{Duration, Instant};
use tempfile::tempdir;

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// Asks until the answer is as wanted.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_drain_makes_it_unready_with_the_reason_and_can_be_taken_back() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    assert_eq!(server.get("/livez").unwrap(), (200, "alive\n".into()));
    for path in ["/readyz", "/readyz?scope=local"] {
        assert_eq!(server.get(path).unwrap(), (200, "ready\n".into()));
    }
    assert_eq!(server.get("/readyz?scope=global").unwrap().0, 400);
    let asked = http(server.admin, "POST", "/api/drain", r#"{"reason":"node drain"}"#).unwrap();
    assert_eq!((asked.0, &json(&asked.1)["phase"]), (200, &"draining".into()));
    for path in ["/readyz", "/readyz?scope=local"] {
        assert_eq!(server.get(path).unwrap(), (503, "draining: node drain\n".into()));
    }
    assert_eq!(server.get("/livez").unwrap().0, 200, "it must not be restarted for that");
    Client::connect(server.stomp).unwrap();
    assert_eq!(http(server.admin, "DELETE", "/api/drain", "").unwrap().0, 200);
    assert_eq!(server.get("/readyz").unwrap().0, 200);
}

#[test]
fn what_is_not_asked_properly_is_refused() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    assert_eq!(
        http(server.admin, "POST", "/api/drain", "").unwrap().0,
        415,
        "no page in a browser may do that"
    );
    assert_eq!(http(server.admin, "POST", "/api/drain", "{").unwrap().0, 400);
    assert_eq!(http(server.admin, "POST", "/api/drain", r#"{"why":1}"#).unwrap().0, 422);
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(100_000));
    assert_eq!(http(server.admin, "POST", "/api/drain", &long).unwrap().0, 413);
    assert_eq!(server.get("/api/nothing").unwrap(), (404, "/api/nothing is not known here\n".into()));
    assert_eq!(server.get("/api/queues?after=a%20b").unwrap().0, 400);
    assert_eq!(server.get("/readyz").unwrap().0, 200);
}

#[test]
fn tells_who_it_is_and_what_it_holds() {
    let folder = tempdir().unwrap();
    let server = Server::start_with(folder.path(), "node: orders-0", &[("POD_UID", "u-1")]).unwrap();
    let mut client = Client::connect(server.stomp).unwrap();
    for queue in ["b", "a", "a"] {
        client.send(format!("SEND\ndestination:/queue/{queue}\nreceipt:r\n\nhello\0")).unwrap();
        client.expect("RECEIPT").unwrap();
    }
    client.send("SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\nprefetch-count:1\n\n\0").unwrap();
    client.expect("MESSAGE").unwrap();
    let node = json(&server.get("/api/node").unwrap().1);
    for (key, value) in [
        ("node", serde_json::json!("orders-0")),
        ("podUid", "u-1".into()),
        ("phase", "serving".into()),
        ("recovered", true.into()),
        ("broker", serde_json::json!({ "ready": true, "reason": null })),
        ("durableSubscriptions", serde_json::json!([])),
        ("ownMessages", 3.into()),
        ("unacked", 1.into()),
        ("configError", serde_json::Value::Null),
        ("version", env!("CARGO_PKG_VERSION").into()),
    ] {
        assert_eq!(node[key], value, "{key} in {node}");
    }
    let config = fs::read(folder.path().join("config.yaml")).unwrap();
    assert_eq!(node["configHash"], serde_json::json!(berth_config::hash(&config)));
    let first = json(&server.get("/api/queues?max=1").unwrap().1);
    assert_eq!(first["queues"][0]["name"], "a");
    assert_eq!((&first["queues"][0]["ready"], &first["queues"][0]["inFlight"]), (&1.into(), &1.into()));
    assert_eq!((&first["queues"][0]["consumers"], &first["next"]), (&1.into(), &"a".into()));
    let second = json(&server.get("/api/queues?after=a").unwrap().1);
    assert_eq!((&second["queues"][0]["name"], &second["next"]), (&"b".into(), &serde_json::Value::Null));
    let metrics = server.get("/metrics").unwrap().1;
    for line in [
        "berth_connections{protocol=\"stomp\"} 1",
        "berth_messages_in_total{protocol=\"stomp\"} 3",
        "berth_queue_depth{channel=\"b\"} 1",
        "berth_queue_in_flight{channel=\"a\"} 1",
        "berth_broker_ready 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn the_dynamic_file_is_read_again_and_a_bad_one_changes_nothing() {
    let folder = tempdir().unwrap();
    let dynamic = folder.path().join("dynamic.yaml");
    let server = Server::start(folder.path(), "").unwrap();
    let error = || json(&server.get("/api/node").unwrap().1)["configError"].clone();
    fs::write(&dynamic, "logging: { level: debug }").unwrap();
    server.line_with("Configuration changed").unwrap();
    let client = Client::connect(server.stomp).unwrap();
    server.line_with("Connection accepted").unwrap();
    fs::write(&dynamic, "logging: { level: loud }").unwrap();
    let line = server.line_with("New configuration refused").unwrap();
    assert!(line.contains("logging.level"), "{line}");
    assert!(error().as_str().unwrap().contains("dynamic.yaml: logging.level: one of"), "{}", error());
    assert!(server.get("/metrics").unwrap().1.contains("berth_config_reload_errors_total 1"));
    drop(client);
    let _another = Client::connect(server.stomp).unwrap();
    server.line_with("Connection accepted").unwrap();
    fs::remove_file(&dynamic).unwrap();
    until("the error is gone", || error().is_null());
}

#[test]
fn a_log_for_programs_is_one_json_object_a_line() {
    let folder = tempdir().unwrap();
    let config = "dataDir: data\nstomp: { port: 0 }\nlogging: { format: json }\n";
    fs::write(folder.path().join("config.yaml"), config).unwrap();
    let command = std::process::Command::new(berth_e2e::process::program());
    let mut command = berth_e2e::process::clean(command, folder.path());
    let mut child = command.args(["--config", "config.yaml"]).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut seen = Vec::new();
    for line in lines.map_while(Result::ok) {
        let event = json(&line);
        for key in ["timestamp", "level", "message", "target"] {
            assert!(event[key].is_string(), "{key} in {line}");
        }
        seen.push(event["message"].as_str().unwrap().to_owned());
        if event["message"] == "Ready" {
            let pid = child.id().to_string();
            std::process::Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap();
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(seen[0].starts_with("STOMP on 127.0.0.1:"), "{seen:?}");
    assert_eq!(seen.last().unwrap(), "Stopped", "{seen:?}");
}

#[test]
fn the_hook_before_the_end_makes_it_unready_and_gives_the_cluster_time() {
    let folder = tempdir().unwrap();
    let server = Server::start(folder.path(), "").unwrap();
    let admin = server.admin.to_string();
    let variables = [("BERTH_ADMIN__ADDRESS", admin.as_str())];
    let begun = Instant::now();
    let hook = run(&["drain", "--prepare", "--config", "config.yaml"], &variables, folder.path()).unwrap();
    assert_eq!(hook.code, 0, "{hook:?}");
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(server.get("/readyz").unwrap(), (503, "draining: the pod is being stopped\n".into()));
    drop(server);
    let nobody = run(&["drain", "--prepare", "--config", "config.yaml"], &variables, folder.path()).unwrap();
    assert_eq!(nobody.code, 1, "{nobody:?}");
    assert!(nobody.err.starts_with(&format!("berth-connector: admin port {admin}: ")), "{nobody:?}");
}
