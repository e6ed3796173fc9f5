// Laws: values with units are parsed as written, print text that parses to the same value, and never have a guessed unit.

#include "libcore/base/units.h"

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/base/error.h"

namespace galley {
namespace {

template <class T>
T parsed(std::string_view text) {
  T value;
  value.parse(text);
  return value;
}

TEST(Units, Counts) {
  EXPECT_EQ(parse_count("1_000_000"), 1'000'000);
  EXPECT_EQ(parse_count("1e6"), 1'000'000);
  EXPECT_EQ(parse_count("-5"), -5);
  EXPECT_EQ(parse_count("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_count("0x10"), 16);
  for (const char* bad : {"", "1.5", "x", "1 2", "9223372036854775808", "1e30", "--1", "1__0", "_1", "1_", "-", "0x"})
    EXPECT_THROW(parse_count(bad), Error) << bad;
}

TEST(Units, Numbers) {
  EXPECT_EQ(parse_number("1e-4"), 1e-4);
  EXPECT_EQ(parse_number(".5"), 0.5);
  EXPECT_EQ(parse_number("+3."), 3.0);
  EXPECT_TRUE(std::isinf(parse_number(".inf")));
  EXPECT_TRUE(std::isnan(parse_number(".nan")));
  for (const char* bad : {"", ".", "1e", "e5", "1,5", "0..5", "1e999", "5%"}) EXPECT_THROW(parse_number(bad), Error) << bad;
  for (const double value : {0.1, 1e-300, 1.0 / 3, 123456789.125, 1e22}) EXPECT_EQ(parse_number(number_text(value)), value);
}

TEST(Units, FixedDigits) {
  EXPECT_EQ(fixed(12.3, 2), "12.30");
  EXPECT_EQ(fixed(-0.05, 1), "-0.1");
  EXPECT_EQ(fixed(1e300, 0), "1e+300") << "301 digits are not readable";
  EXPECT_EQ(fixed(-std::nan(""), 1), "nan");
  EXPECT_EQ(fixed(-HUGE_VAL, 1), "-inf");
}

TEST(Units, Durations) {
  for (const char* text : {"90 epochs", "90epochs", "90  epochs"})
    EXPECT_EQ(parsed<Duration>(text), Duration(90, DurationUnit::kEpochs)) << text;
  EXPECT_EQ(parsed<Duration>("1 epoch"), Duration(1, DurationUnit::kEpochs));
  EXPECT_EQ(parsed<Duration>("0.5 epochs"), Duration(0.5, DurationUnit::kEpochs));
  EXPECT_EQ(parsed<Duration>("1epoch"), Duration(1, DurationUnit::kEpochs)) << "the e belongs to the unit";
  EXPECT_EQ(parsed<Duration>("500 steps"), Duration(500, DurationUnit::kSteps));
  EXPECT_EQ(parsed<Duration>("1e6 samples"), Duration(1e6, DurationUnit::kSamples));
  EXPECT_EQ(parsed<Duration>("1e9tokens"), Duration(1e9, DurationUnit::kTokens));
  EXPECT_EQ(parsed<Duration>("20min"), Duration(1200, DurationUnit::kSeconds));
  EXPECT_EQ(parsed<Duration>("1h30min"), Duration(5400, DurationUnit::kSeconds));
  EXPECT_EQ(parsed<Duration>("10%"), Duration(10, DurationUnit::kPercent));
  for (const char* bad : {"90", "epochs", "", "90 epoch s", "-1 epochs", "1.5 steps", "101%", "5 parsecs", "1h30"})
    EXPECT_THROW(parsed<Duration>(bad), Error) << bad;
  for (const char* text : {"90 epochs", "1 epoch", "0.1 epochs", "1e6 samples", "20min", "90s", "1h30min", "0.3s", "10%", "33.3%", "2h"}) {
    EXPECT_EQ(parsed<Duration>(parsed<Duration>(text).str()), parsed<Duration>(text)) << text;
  }
}

TEST(Units, SizesTimesMultiplesPercentages) {
  EXPECT_EQ(parse_bytes("512MiB"), 512 << 20);
  EXPECT_EQ(parse_bytes("1.5 GB"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parsed<ByteSize>("25MiB").str(), "25MiB");
  EXPECT_EQ(parsed<ByteSize>("1000").str(), "1000");
  for (const char* bad : {"", "MiB", "-1", "1XB", "1e30GB"}) EXPECT_THROW(parse_bytes(bad), Error) << bad;
  EXPECT_EQ(parse_seconds("90s"), 90);
  EXPECT_EQ(parse_seconds("1.5h"), 5400);
  EXPECT_THROW(parse_seconds("90"), Error);
  EXPECT_EQ(parsed<Multiple>("0.01x").of(0.5), 0.005);
  EXPECT_EQ(parsed<Multiple>("0.01").of(0.5), 0.01);
  EXPECT_EQ(parsed<Multiple>("10x").str(), "10x");
  EXPECT_THROW(parsed<Multiple>("x"), Error);
  EXPECT_EQ(parsed<Percentage>("99.99%").percent, 99.99);
  EXPECT_THROW(parsed<Percentage>("95"), Error);
  EXPECT_THROW(parsed<Percentage>("101%"), Error);
  EXPECT_EQ(parsed<AutoCount>("auto").value_or(3), 3);
  EXPECT_EQ(parsed<AutoCount>("0").value_or(3), 0);
  EXPECT_THROW(parsed<AutoCount>("-1"), Error);
  EXPECT_THROW(parsed<AutoCount>("many"), Error);
}

TEST(Units, Slices) {
  using Range = std::pair<int64_t, int64_t>;
  EXPECT_EQ(parsed<Slice>("0%..100%").of(7), Range(0, 7));
  EXPECT_EQ(parsed<Slice>("0..5").of(7), Range(0, 5));
  EXPECT_EQ(parsed<Slice>("80%..").of(10), Range(8, 10));
  EXPECT_EQ(parsed<Slice>("..3").of(10), Range(0, 3));
  // Adjacent percentage ranges share no sample and omit none.
  EXPECT_EQ(parsed<Slice>("0%..33%").of(10).second, parsed<Slice>("33%..100%").of(10).first);
  EXPECT_THROW(parsed<Slice>("0..11").of(10), Error);
  for (const char* bad : {"", "5", "5..5", "9..3", "0%..101%", "1.5..3", "a..b"}) EXPECT_THROW(parsed<Slice>(bad), Error) << bad;
  EXPECT_EQ(parsed<Slice>("10..90%").str(), "10..90%");
}

TEST(Units, ForPeople) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(1.46 * 0x1p30), "1.46 GiB");
  EXPECT_EQ(human_bytes(1010.0 * 0x1p20), "1010 MiB");
  EXPECT_EQ(human_count(1234567), "1,234,567");
  EXPECT_EQ(human_count(-123), "-123");
  EXPECT_EQ(human_count(-1234), "-1,234");
  EXPECT_EQ(human_seconds(0.00085), "850 us");
  EXPECT_EQ(human_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(human_seconds(4.21), "4.21 s");
  EXPECT_EQ(human_seconds(200), "3min 20s");
  EXPECT_EQ(human_seconds(8040), "2h 14min");
  EXPECT_EQ(human_seconds(273600), "3d 4h");
}

}  // namespace
}  // namespace galley
