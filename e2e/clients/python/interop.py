"""Speaks STOMP 1.0, 1.1 and 1.2 with stomp.py and checks what comes back.

usage: interop.py HOST PORT        prints one line per version that works, ends with an error at the first that does not
"""

import queue
import sys
import time

import stomp

PATIENCE = 20
VERSIONS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Inbox(stomp.ConnectionListener):
    """Everything that comes, by kind."""

    def __init__(self):
        self.messages, self.receipts, self.errors = queue.Queue(), queue.Queue(), queue.Queue()
        self.heartbeat_lost = False

    def on_message(self, frame):
        self.messages.put(frame)

    def on_receipt(self, frame):
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame):
        self.errors.put(frame.headers["message"])

    def on_heartbeat_timeout(self):
        self.heartbeat_lost = True


class Client:
    def __init__(self, host, port, version):
        options = {} if version == "1.0" else {"heartbeats": (500, 500)}
        self.version, self.inbox = version, Inbox()
        self.connection = VERSIONS[version]([(host, int(port))], **options)
        self.connection.set_listener("", self.inbox)
        self.connection.connect("guest", "guest", wait=True)

    def send(self, destination, body, **headers):
        receipt = f"r-{time.monotonic_ns()}"
        self.connection.send(destination, body, headers=headers, receipt=receipt)
        expect(self.inbox.receipts.get(timeout=PATIENCE), receipt)

    def subscribe(self, destination, ack):
        self.connection.subscribe(destination, id="s-1", ack=ack, headers={"receipt": "subscribed"})
        expect(self.inbox.receipts.get(timeout=PATIENCE), "subscribed")

    def message(self, body):
        frame = self.inbox.messages.get(timeout=PATIENCE)
        expect(frame.body, body)
        return frame

    def settle(self, verb, frame):
        headers = frame.headers
        how = getattr(self.connection, verb)
        if self.version == "1.2":
            how(headers["ack"], receipt=verb)
        elif self.version == "1.1":
            how(headers["message-id"], "s-1", receipt=verb)
        else:
            how(headers["message-id"], receipt=verb)
        expect(self.inbox.receipts.get(timeout=PATIENCE), verb)

    def leave(self):
        # Waits for the server to close after the receipt, and hands that receipt to nobody.
        self.connection.disconnect()
        expect(list(self.inbox.errors.queue), [])


def expect(got, wanted):
    if got != wanted:
        raise SystemExit(f"got {got!r}, expected {wanted!r}")


def speak(host, port, version):
    name = f"/queue/interop/{version.replace('.', '-')}"
    client = Client(host, port, version)
    client.send(name, "first", **{"colour": "r: e\\d\nd" if version != "1.0" else "red", "content-type": "text/plain"})
    client.send(name, "second")
    client.send(name, "third")
    client.subscribe(name, "client-individual" if version != "1.0" else "client")
    first = client.message("first")
    expect(first.headers["destination"], name)
    expect(first.headers["colour"], "r: e\\d\nd" if version != "1.0" else "red")
    expect(first.headers["content-type"], "text/plain")
    client.settle("ack", first)
    second = client.message("second")
    client.message("third")
    if version != "1.0":
        client.settle("nack", second)
        again = client.message("second")
        expect(again.headers["redelivered"], "true")
        client.settle("ack", again)
        # Quiet for longer than a heart-beat: both sides must keep the connection.
        time.sleep(1.5)
        expect(client.inbox.heartbeat_lost, False)
    client.connection.unsubscribe(id="s-1")
    client.leave()
    # What was not acknowledged comes to the next one, in mode auto without an acknowledgement.
    worker = Client(host, port, version)
    worker.subscribe(name, "auto")
    left = ["third"] if version != "1.0" else ["second", "third"]
    for body in left:
        expect(worker.message(body).headers["redelivered"], "true")
    worker.leave()
    refused = Client(host, port, version)
    refused.connection.send("no such place", "x")
    expect(refused.inbox.errors.get(timeout=PATIENCE), "invalid destination")
    print(version, flush=True)


if __name__ == "__main__":
    for each in VERSIONS:
        speak(sys.argv[1], sys.argv[2], each)
