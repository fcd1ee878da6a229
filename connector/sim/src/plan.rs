//! What a seed makes of a history: who takes part, and which kinds of faults may happen. Each seed enables
//! a random subset (swarm testing), so that rare combinations happen and most histories are not drowned in
//! noise.

use std::time::Duration;

use berth_log::Fsync;

use crate::random::Random;

/// Which kinds of faults happen in a history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Reads and writes of a few bytes.
    pub tiny_chunks: bool,
    /// The network takes up to 200 ms instead of up to 2.
    pub slow_network: bool,
    /// Connections break at any byte.
    pub cuts: bool,
    /// Connections break and the server is not told.
    pub half_open: bool,
    /// Clients rest between reads, sometimes for longer than the ack timeout.
    pub slow_readers: bool,
    /// The process is killed.
    pub kills: bool,
    /// The power fails: unsynced sectors are lost, old, or garbage.
    pub power_cuts: bool,
    /// Recovery is killed too.
    pub recovery_kills: bool,
    /// Storage operations take up to 1.5 s instead of up to 2 ms.
    pub slow_disk: bool,
    /// The disk is full for a while.
    pub disk_full: bool,
    /// A write or a sync fails.
    pub disk_errors: bool,
    /// The server is stopped in order and started again.
    pub drains: bool,
    /// The wall clock steps.
    pub clock_steps: bool,
    /// Clients settle late, or never.
    pub lazy_consumers: bool,
}

/// Everything that is decided before a history begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What may go wrong.
    pub faults: Faults,
    /// How long things may go wrong; then comes quiet time.
    pub duration: Duration,
    /// Queues in use.
    pub queues: u64,
    /// Clients that send.
    pub producers: u64,
    /// Clients that consume.
    pub consumers: u64,
    /// Messages of each producer.
    pub messages: u64,
    /// Largest body in bytes.
    pub body_bytes_max: u64,
    /// The ack timeout of the server.
    pub ack_timeout: Duration,
    /// When a confirm is given.
    pub fsync: Fsync,
    /// Bytes of a journal segment.
    pub segment_bytes: u32,
    /// Bytes that a connection holds on its way in each direction.
    pub socket_bytes: usize,
}

impl Plan {
    /// The plan that a seed makes.
    pub fn draw(random: &mut Random) -> Self {
        let mut on = || random.chance(300);
        let mut faults = Faults {
            tiny_chunks: on(),
            slow_network: on(),
            cuts: on(),
            half_open: on(),
            slow_readers: on(),
            kills: on(),
            power_cuts: on(),
            recovery_kills: on(),
            slow_disk: on(),
            disk_full: on(),
            disk_errors: on(),
            drains: on(),
            clock_steps: on(),
            lazy_consumers: on(),
        };
        let fsync =
            *random.pick(&[Fsync::Always, Fsync::Always, Fsync::Always, Fsync::Interval, Fsync::Never]);
        if fsync != Fsync::Always {
            // Nothing is promised about them then.
            (faults.power_cuts, faults.disk_errors) = (false, false);
        }
        Self {
            faults,
            duration: Duration::from_secs(random.between(10, 40)),
            queues: random.between(1, 3),
            producers: random.between(1, 4),
            consumers: random.between(1, 5),
            messages: random.between(10, 150),
            body_bytes_max: *random.pick(&[16, 200, 3000]),
            ack_timeout: Duration::from_secs(random.between(1, 6)),
            fsync,
            segment_bytes: *random.pick(&[64 * 1024, 128 * 1024, 1024 * 1024]),
            socket_bytes: *random.pick(&[256, 4096, 65_536]),
        }
    }

    /// Whether what was confirmed survives a loss of power: only `always` promises it.
    pub(crate) fn survives_power_cuts(&self) -> bool {
        self.fsync == Fsync::Always
    }
}
