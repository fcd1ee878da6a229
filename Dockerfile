# The image that runs in a cluster: two static binaries and nothing else, for connector and operator alike.
#
#   RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --target x86_64-unknown-linux-gnu \
#     -p berth-connector -p berth-operator
#   docker build -t berth:dev .
#
# A container that is started by hand listens on its own loopback address unless it is told otherwise:
#
#   docker run -p 61613:61613 --tmpfs /data:uid=65532 -e BERTH_DATA_DIR=/data -e BERTH_STOMP__ADDRESS=0.0.0.0 berth:dev
FROM scratch
ARG BINARIES=target/x86_64-unknown-linux-gnu/release
COPY --chmod=0555 ${BINARIES}/berth-connector ${BINARIES}/berth-operator /
USER 65532:65532
EXPOSE 61613 9090
ENTRYPOINT ["/berth-connector"]
