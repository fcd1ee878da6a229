//! Jakarta Messaging 3.1, "Message selector syntax", paragraph by paragraph.

use berth_engine::port::Selector;
use berth_selector::SqlSelector;

use crate::message::Message;

const TRUE: Option<bool> = Some(true);
const FALSE: Option<bool> = Some(false);
const UNKNOWN: Option<bool> = None;

fn check(message: &str, cases: &[(&str, Option<bool>)]) {
    let message = Message::new(message);
    for (text, expected) in cases {
        let selector = SqlSelector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(selector.evaluate(&message), *expected, "{text} over {message:?}");
        assert_eq!(selector.matches(&message), *expected == TRUE);
        assert_eq!(selector.text(), *text);
    }
}

fn refused(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        match SqlSelector::parse(text) {
            Ok(_) => panic!("{text} was taken"),
            Err(error) => assert_eq!(error.to_string(), *expected, "{text}"),
        }
    }
}

#[test]
fn and_or_not_over_unknown() {
    // The tables of AND, OR and NOT: t is true, f false, u does not exist.
    check(
        "t=true, f=false",
        &[
            ("t AND t", TRUE),
            ("t AND f", FALSE),
            ("t AND u", UNKNOWN),
            ("f AND t", FALSE),
            ("f AND f", FALSE),
            ("f AND u", FALSE),
            ("u AND t", UNKNOWN),
            ("u AND f", FALSE),
            ("u AND u", UNKNOWN),
            ("t OR t", TRUE),
            ("t OR f", TRUE),
            ("t OR u", TRUE),
            ("f OR t", TRUE),
            ("f OR f", FALSE),
            ("f OR u", UNKNOWN),
            ("u OR t", TRUE),
            ("u OR f", UNKNOWN),
            ("u OR u", UNKNOWN),
            ("NOT t", FALSE),
            ("NOT f", TRUE),
            ("NOT u", UNKNOWN),
        ],
    );
}

#[test]
fn precedence() {
    check(
        "a='x', b='z', n=7",
        &[
            ("a = 'x' OR b = 'y' AND b = 'w'", TRUE),
            ("(a = 'x' OR b = 'y') AND b = 'w'", FALSE),
            ("NOT a = 'y' AND b = 'z'", TRUE),
            ("NOT (a = 'x' AND b = 'y')", TRUE),
            ("n = 1 + 2 * 3", TRUE),
            ("n = (1 + 2) * 3 - 2", TRUE),
            ("n - 1 - 1 = 5", TRUE),
            ("- n + 8 = 1", TRUE),
            ("2 * - n = -14", TRUE),
            ("n BETWEEN 1 AND 9 AND b = 'z'", TRUE),
            ("NOT n BETWEEN 1 AND 9 OR FALSE", FALSE),
            ("nOt n Is nUlL aNd TrUe", TRUE),
            ("\tn\n>\r\x0c6", TRUE),
            ("n>6 AND b='z'", TRUE),
        ],
    );
}

#[test]
fn literals() {
    check(
        "n=255, d=7000.0, s='it''s'".replace("''", "'").as_str(),
        &[
            ("n = 0xFF", TRUE),
            ("n = 0377", TRUE),
            ("n = 255L", TRUE),
            ("n = 2.55e2", TRUE),
            ("n = 255.", TRUE),
            ("d = 7E3", TRUE),
            ("d = +7000", TRUE),
            ("s = 'it''s'", TRUE),
            ("-9223372036854775808 < n", TRUE),
            ("9223372036854775807 > n", TRUE),
            ("TRUE = true", TRUE),
            ("TRUE <> TRUE", FALSE),
        ],
    );
    refused(&[
        ("n = 9223372036854775808", "column 5: the number is too large"),
        ("n = -9223372036854775809", "column 6: 9223372036854775809 is too large"),
        ("n = 08", "column 5: 08 is no number"),
        ("s = 'x", "column 5: the text that starts here has no closing quote"),
    ]);
}

#[test]
fn comparisons_of_unlike_types_are_unknown() {
    check(
        "s='10', n=10, t=true",
        &[
            ("s = 10", UNKNOWN),
            ("s <> 10", UNKNOWN),
            ("s > 9", UNKNOWN),
            ("n = '10'", UNKNOWN),
            ("n = TRUE", UNKNOWN),
            ("t = 'true'", UNKNOWN),
            ("t = 1", UNKNOWN),
            ("s = n", UNKNOWN),
            ("t = n", UNKNOWN),
            ("n", UNKNOWN),
            ("s", UNKNOWN),
            ("n LIKE '1%'", UNKNOWN),
            ("n IN ('10')", UNKNOWN),
            ("'10' = 10", UNKNOWN),
            ("TRUE = 1", UNKNOWN),
            ("n + s = 20", UNKNOWN),
            ("n = 10.0", TRUE),
            ("s = 's'", FALSE),
            ("'a' = 'a'", TRUE),
            ("s = '10' AND n <> 11", TRUE),
        ],
    );
}

#[test]
fn text_without_a_type_takes_the_type_that_is_asked_for() {
    check(
        "price:11, rate:1.5e1, open:true, word:eleven, spaced: 11, n=11, s='11', b=true, same:11",
        &[
            ("price > 10", TRUE),
            ("price = 11", TRUE),
            ("price = 11.0", TRUE),
            ("price = '11'", TRUE),
            ("price = '11.0'", FALSE),
            ("price LIKE '1_'", TRUE),
            ("price IN ('10', '11')", TRUE),
            ("price BETWEEN 11 AND 12", TRUE),
            ("price + rate = 26", TRUE),
            ("-price = -11", TRUE),
            ("open", TRUE),
            ("open = TRUE", TRUE),
            ("open = 'true'", TRUE),
            ("open = 1", UNKNOWN),
            ("NOT word", UNKNOWN),
            ("word > 10", UNKNOWN),
            ("spaced > 10", UNKNOWN),
            ("price = n", TRUE),
            ("n = price", TRUE),
            ("price = s", TRUE),
            ("open = b", TRUE),
            ("b = price", UNKNOWN),
            ("price = same", TRUE),
            ("price <> rate", TRUE),
            ("price < rate", TRUE),
        ],
    );
}

#[test]
fn between_in_like_is_null() {
    check(
        "age=17, country='UK', phone='12993', word='loose', under='_foo', percent='50%'",
        &[
            ("age BETWEEN 15 AND 19", TRUE),
            ("age BETWEEN 17 AND 17", TRUE),
            ("age BETWEEN 19 AND 15", FALSE),
            ("age NOT BETWEEN 15 AND 19", FALSE),
            ("missing BETWEEN 1 AND 2", UNKNOWN),
            ("age BETWEEN missing AND 16", FALSE),
            ("age NOT BETWEEN missing AND 16", TRUE),
            ("age BETWEEN missing AND 18", UNKNOWN),
            ("country IN ('UK', 'US', 'France')", TRUE),
            ("country NOT IN ('UK', 'US', 'France')", FALSE),
            ("country IN ('uk')", FALSE),
            ("missing IN ('UK')", UNKNOWN),
            ("missing NOT IN ('UK')", UNKNOWN),
            ("phone LIKE '12%3'", TRUE),
            ("word LIKE 'l_se'", FALSE),
            ("under LIKE '\\_%' ESCAPE '\\'", TRUE),
            ("word LIKE '\\_%' ESCAPE '\\'", FALSE),
            ("under LIKE '\\_%'", FALSE),
            ("percent LIKE '%!%' ESCAPE '!'", TRUE),
            ("phone NOT LIKE '12%3'", FALSE),
            ("missing LIKE '%'", UNKNOWN),
            ("missing NOT LIKE '%'", UNKNOWN),
            ("missing IS NULL", TRUE),
            ("missing IS NOT NULL", FALSE),
            ("age IS NULL", FALSE),
            ("age IS NOT NULL", TRUE),
        ],
    );
}

#[test]
fn arithmetic_over_null_is_null() {
    check(
        "n=7",
        &[
            ("n + missing = 7", UNKNOWN),
            ("n / 0 = 1", UNKNOWN),
            ("n / 0.0 > 1", UNKNOWN),
            ("n / 2 = 3", TRUE),
            ("n / 2.0 = 3.5", TRUE),
            ("9223372036854775807 + n > 9223372036854775807", FALSE),
            ("9223372036854775807 * n > 9223372036854775807", TRUE),
        ],
    );
}

#[test]
fn headers() {
    check(
        "",
        &[
            ("JMSPriority = 4", TRUE),
            ("JMSDeliveryMode = 'NON_PERSISTENT'", TRUE),
            ("JMSExpiration = 0", TRUE),
            ("JMSTimestamp IS NULL", TRUE),
            ("JMSMessageID IS NULL", TRUE),
            ("JMSCorrelationID IS NULL AND JMSType IS NULL", TRUE),
            ("jmspriority IS NULL", TRUE),
        ],
    );
    check(
        "JMSPriority=9, JMSDeliveryMode=true, JMSExpiration=5, JMSTimestamp=6, JMSMessageID='ID:1', \
         JMSCorrelationID='c', JMSType='t', JMSXGroupID='g', JMS_BERTH='x'",
        &[
            ("JMSPriority > 4", TRUE),
            ("JMSDeliveryMode = 'PERSISTENT'", TRUE),
            ("JMSExpiration = 5 AND JMSTimestamp = 6", TRUE),
            ("JMSMessageID = 'ID:1' AND JMSCorrelationID = 'c' AND JMSType = 't'", TRUE),
            ("JMSXGroupID = 'g' AND JMS_BERTH = 'x'", TRUE),
        ],
    );
    check(
        "JMSDeliveryMode:true, JMSPriority:9",
        &[("JMSDeliveryMode = 'PERSISTENT' AND JMSPriority = 9", TRUE)],
    );
    refused(&[
        ("JMSReplyTo = 'q'", "column 1: JMSReplyTo is no header that a selector can use"),
        ("a = 1 AND JMSPriorty > 3", "column 11: JMSPriorty is no header that a selector can use"),
    ]);
}

#[test]
fn names_are_case_sensitive_and_the_first_of_a_name_counts() {
    check("a:1, A:2, a:3, $x_1:4, _:5", &[("a = 1", TRUE), ("A = 2", TRUE), ("$x_1 = 4 AND _ = 5", TRUE)]);
}

#[test]
fn what_is_no_selector() {
    refused(&[
        ("", "column 1: the selector is empty"),
        (" \t ", "column 1: the selector is empty"),
        ("a =", "column 4: a value is expected, not the end"),
        ("a = 1 b", "column 7: AND, OR or the end is expected, not b"),
        ("a = = 1", "column 5: a value is expected, not ="),
        ("a < b < c", "column 7: AND, OR or the end is expected, not <"),
        ("(a = 1", "column 7: ) is expected, not the end"),
        ("a = 1)", "column 6: AND, OR or the end is expected, not )"),
        ("1 + 2", "column 1: a condition is expected, and this is a number or a text"),
        ("a AND 'x'", "column 7: a condition is expected, and this is a number or a text"),
        ("(a = b) = c", "column 1: a value is expected, and this is a condition"),
        ("a > 'x'", "column 5: a number is expected; text and booleans only go with = and <>"),
        ("a + TRUE = 1", "column 5: a number is expected; text and booleans only go with = and <>"),
        ("a IN (1, 2)", "column 7: IN takes texts in single quotes; one is expected, not 1"),
        ("a IN ()", "column 7: IN takes texts in single quotes; one is expected, not )"),
        ("'a' IN ('a')", "column 1: IN needs the name of a property before it"),
        ("1 LIKE 'a'", "column 1: LIKE needs the name of a property before it"),
        ("a LIKE b", "column 8: a pattern in single quotes is expected, not b"),
        ("a LIKE 'x' ESCAPE 'yz'", "column 19: ESCAPE takes exactly one character"),
        ("a LIKE 'xy' ESCAPE 'x'", "column 8: the escape character must stand before %, _ or itself"),
        ("a IS 1", "column 6: NULL is expected, not 1"),
        ("a = NULL", "column 5: a value is expected, not NULL"),
        ("a NOT = 1", "column 7: BETWEEN, LIKE or IN is expected, not ="),
        ("a BETWEEN 1 OR 2", "column 13: the AND of BETWEEN is expected, not OR"),
        ("a = \"x\"", "column 5: text stands in single quotes"),
        ("a != 1", "column 3: write <> for \"not equal\""),
        ("größe = #", "column 9: # has no meaning here"),
        ("AND = 1", "column 1: a value is expected, not AND"),
    ]);
}
