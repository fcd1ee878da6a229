"""Sends or consumes over stomp.py and prints one line for each thing that the server has confirmed.

usage: load.py produce HOST PORT QUEUE PREFIX COUNT      prints: confirmed ID
       load.py consume HOST PORT QUEUE IDLE_SECONDS      prints: received ID REDELIVERED, settled ID

A producer sends COUNT messages whose bodies are their ids, each with a receipt, at most WINDOW of them unconfirmed. A
consumer acknowledges each message by itself, with a receipt, and ends after IDLE_SECONDS without a message (0: never).
Both end when the server goes away, which is what the tests do to them. Lines are flushed one by one: what was printed was
confirmed.
"""

import logging
import os
import sys
import threading
import time

import stomp

# A server that goes away is what the tests are about, not worth a traceback.
logging.disable(logging.CRITICAL)

WINDOW = 64
OUT = threading.Lock()


def say(*words):
    with OUT:
        sys.stdout.write(" ".join(words) + "\n")
        sys.stdout.flush()


class Gone(stomp.ConnectionListener):
    def __init__(self):
        self.gone = threading.Event()

    def on_disconnected(self):
        self.gone.set()

    def on_error(self, frame):
        say("error", frame.headers.get("message"))


class Producer(Gone):
    def __init__(self):
        super().__init__()
        self.room = threading.Semaphore(WINDOW)
        self.confirmed = 0

    def on_receipt(self, frame):
        say("confirmed", frame.headers["receipt-id"])
        self.confirmed += 1
        self.room.release()


class Consumer(Gone):
    def __init__(self, connection):
        super().__init__()
        self.connection = connection
        self.last = time.monotonic()

    def on_message(self, frame):
        self.last = time.monotonic()
        say("received", frame.body, frame.headers.get("redelivered", "false"))
        try:
            self.connection.ack(frame.headers["ack"], receipt=frame.body)
        except Exception:
            self.gone.set()

    def on_receipt(self, frame):
        say("settled", frame.headers["receipt-id"])


def connect(host, port, listener_of):
    connection = stomp.Connection12([(host, int(port))], reconnect_attempts_max=1, heartbeats=(0, 0))
    listener = listener_of(connection)
    connection.set_listener("", listener)
    connection.connect("load", "secret", wait=True)
    return connection, listener


def produce(host, port, queue, prefix, count):
    connection, producer = connect(host, port, lambda _: Producer())
    count = int(count)
    try:
        for number in range(count):
            while not producer.room.acquire(timeout=0.1):
                if producer.gone.is_set():
                    return
            name = f"{prefix}-{number}"
            connection.send(f"/queue/{queue}", name, headers={"receipt": name})
        while producer.confirmed < count and not producer.gone.wait(0.02):
            pass
        connection.disconnect()
    except stomp.exception.StompException:
        pass


def consume(host, port, queue, idle_seconds):
    connection, consumer = connect(host, port, Consumer)
    idle = float(idle_seconds)
    connection.subscribe(f"/queue/{queue}", id="1", ack="client-individual", headers={"prefetch-count": "50"})
    while not consumer.gone.wait(0.05):
        if idle and time.monotonic() - consumer.last > idle:
            connection.disconnect()
            return


if __name__ == "__main__":
    {"produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:])
    # The threads of stomp.py may still be in the middle of a line.
    with OUT:
        os._exit(0)
