//! The timers of a connection: a fixed handful, so an array and a linear minimum beat anything clever.

use berth_types::Instant;

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// A complete CONNECT.
    Handshake,
    /// Any octet from a peer that promised heart-beats.
    ReadIdle,
    /// The next heart-beat of ours.
    WriteHeartbeat,
    /// A peer whose socket accepts nothing (only when a write timeout is set).
    WriteStall,
    /// The last output of a connection that is being closed.
    CloseGrace,
}

impl Timer {
    const ALL: [Self; 5] =
        [Self::Handshake, Self::ReadIdle, Self::WriteHeartbeat, Self::WriteStall, Self::CloseGrace];

    /// A stable word for metric labels and logs.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::ReadIdle => "read_idle",
            Self::WriteHeartbeat => "write_heartbeat",
            Self::WriteStall => "write_stall",
            Self::CloseGrace => "close_grace",
        }
    }
}

/// Which timers are armed, and until when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimerTable {
    handshake: Option<Instant>,
    read_idle: Option<Instant>,
    write_heartbeat: Option<Instant>,
    write_stall: Option<Instant>,
    close_grace: Option<Instant>,
}

impl TimerTable {
    pub(crate) fn arm(&mut self, timer: Timer, at: Instant) {
        *self.slot(timer) = Some(at);
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        *self.slot(timer) = None;
    }

    pub(crate) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_armed(&self, timer: Timer) -> bool {
        self.at(timer).is_some()
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        Timer::ALL.into_iter().filter_map(|timer| self.at(timer)).min()
    }

    /// Disarms and returns one timer that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let due = Timer::ALL.into_iter().find(|timer| self.at(*timer).is_some_and(|at| at <= now))?;
        self.stop(due);
        Some(due)
    }

    const fn at(&self, timer: Timer) -> Option<Instant> {
        match timer {
            Timer::Handshake => self.handshake,
            Timer::ReadIdle => self.read_idle,
            Timer::WriteHeartbeat => self.write_heartbeat,
            Timer::WriteStall => self.write_stall,
            Timer::CloseGrace => self.close_grace,
        }
    }

    const fn slot(&mut self, timer: Timer) -> &mut Option<Instant> {
        match timer {
            Timer::Handshake => &mut self.handshake,
            Timer::ReadIdle => &mut self.read_idle,
            Timer::WriteHeartbeat => &mut self.write_heartbeat,
            Timer::WriteStall => &mut self.write_stall,
            Timer::CloseGrace => &mut self.close_grace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_earliest_and_takes_each_once() {
        let mut table = TimerTable::default();
        assert_eq!(table.next(), None);
        table.arm(Timer::ReadIdle, Instant::from_nanos(20));
        table.arm(Timer::Handshake, Instant::from_nanos(10));
        assert_eq!(table.next(), Some(Instant::from_nanos(10)));
        assert_eq!(table.take_due(Instant::from_nanos(9)), None);
        assert_eq!(table.take_due(Instant::from_nanos(10)), Some(Timer::Handshake));
        assert_eq!(table.take_due(Instant::from_nanos(10)), None);
        assert!(table.is_armed(Timer::ReadIdle));
        table.stop_all();
        assert_eq!(table.next(), None);
    }
}
