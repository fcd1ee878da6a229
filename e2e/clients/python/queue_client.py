"""Sends to a queue and takes from it with stomp.py, the way an application would.

usage: queue_client.py HOST PORT send QUEUE FIRST LAST    sends the bodies FIRST..LAST, each with a receipt
       queue_client.py HOST PORT take QUEUE COUNT         takes COUNT messages, acks each by itself, prints JSON lines
"""

import json
import sys
import threading

import stomp

PATIENCE = 30


class Listener(stomp.ConnectionListener):
    def __init__(self):
        self.messages = []
        self.receipts = set()
        self.errors = []
        self.changed = threading.Condition()

    def on_message(self, frame):
        with self.changed:
            self.messages.append(frame)
            self.changed.notify_all()

    def on_receipt(self, frame):
        with self.changed:
            self.receipts.add(frame.headers["receipt-id"])
            self.changed.notify_all()

    def on_error(self, frame):
        with self.changed:
            self.errors.append(frame.headers.get("message", "") + " " + str(frame.body))
            self.changed.notify_all()

    def wait(self, what):
        with self.changed:
            done = self.changed.wait_for(lambda: self.errors or what(), PATIENCE)
        if self.errors:
            sys.exit(f"ERROR from the server: {self.errors}")
        if not done:
            sys.exit(f"nothing came for {PATIENCE} s; {len(self.messages)} messages, receipts {self.receipts}")


def main():
    host, port, action, queue = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    listener = Listener()
    connection = stomp.Connection12([(host, port)], heartbeats=(10000, 10000))
    connection.set_listener("", listener)
    connection.connect(wait=True)
    if action == "send":
        for body in range(int(sys.argv[5]), int(sys.argv[6]) + 1):
            connection.send(f"/queue/{queue}", str(body), receipt=f"sent-{body}")
            listener.wait(lambda: f"sent-{body}" in listener.receipts)
    elif action == "take":
        count = int(sys.argv[5])
        headers = {"prefetch-count": str(count)}
        connection.subscribe(f"/queue/{queue}", id="1", ack="client-individual", headers=headers)
        for index in range(count):
            listener.wait(lambda: len(listener.messages) > index)
            frame = listener.messages[index]
            redelivered = frame.headers.get("redelivered") == "true"
            print(json.dumps({"body": frame.body, "redelivered": redelivered}), flush=True)
            connection.ack(frame.headers["ack"], receipt=f"acked-{index}")
            listener.wait(lambda: f"acked-{index}" in listener.receipts)
    else:
        sys.exit(__doc__)
    connection.disconnect(receipt="bye")
    listener.wait(lambda: "bye" in listener.receipts)


main()
