//! Prints what one evaluation costs, in nanoseconds: `cargo run --release -p berth-selector --example cost`.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use berth_selector::SqlSelector;
use berth_types::{Field, Value, View};

struct Order;

impl View for Order {
    fn visit(&self, f: &mut dyn FnMut(Field<'_>, Value<'_>)) {
        f(Field::ContentType, Value::Text("application/json"));
        f(Field::OwnId, Value::Text("ID:order-4711"));
        f(Field::User("region"), Value::Untyped("EMEA"));
        f(Field::User("customer"), Value::Text("a rather long name of a customer, in words"));
        f(Field::User("price"), Value::Untyped("119.90"));
        f(Field::User("quantity"), Value::Integer(12));
    }
}

fn main() {
    for text in [
        "region = 'EMEA'",
        "price > 100",
        "quantity * 2 BETWEEN 20 AND 30",
        "region IN ('APAC', 'EMEA', 'LATAM') AND quantity > 10 AND JMSPriority = 4",
        "customer LIKE '%customer%'",
        "customer LIKE '%c_stomer%words'",
        "a = 1 OR b = 2 OR c = 3 OR d = 4 OR e = 5 OR f = 6 OR g = 7 OR h = 8 OR i = 9 OR quantity = 12",
    ] {
        let selector = SqlSelector::parse(text).expect("the examples are selectors");
        // The best of many short batches: what the machine does besides falls out.
        let batch = || {
            let start = Instant::now();
            for _ in 0..BATCH {
                black_box(black_box(&selector).evaluate(black_box(&Order)));
            }
            start.elapsed().as_nanos() as f64 / f64::from(BATCH)
        };
        let best = (0..2_000).map(|_| batch()).fold(f64::INFINITY, f64::min);
        println!("{best:6.1} ns  {text}");
    }
}

const BATCH: u32 = 500;
