// JPEGs that deviate from the format: deviations that change no pixel are accepted and reported; files with missing data are rejected. The
// intact file is the reference for the pixels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/data/codec.h"
#include "tests/support/jpeg.h"

namespace galley {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kJpegHeight = 37, kJpegWidth = 45;  // not multiples of the block size

struct Form {
  const char* name;
  test::JpegForm form;
};
const Form kForms[] = {{"half chroma", {}},
                       {"full chroma, restarts", {.sampling = 1, .restart_every = 3}},
                       {"half chroma, restarts", {.restart_every = 1}},
                       {"gray", {.gray = true}},
                       {"progressive", {.progressive = true}},
                       {"progressive gray, restarts", {.gray = true, .progressive = true, .restart_every = 4}},
                       {"one scan per channel", {.scan_a_channel = true}},
                       {"one scan per channel, restarts", {.sampling = 1, .scan_a_channel = true, .restart_every = 5}}};

Bytes encoded(const test::JpegForm& form) {
  std::vector<uint8_t> pixels;
  for (int y = 0; y < kJpegHeight; ++y) {
    for (int x = 0; x < kJpegWidth; ++x) {
      for (int c = 0; c < (form.gray ? 1 : 3); ++c) {
        pixels.push_back(
            static_cast<uint8_t>(127 + 70 * std::sin(x * (c + 1) / 5.0) + 50 * std::cos(y * (c + 2) / 7.0) + (x * 31 + y * 17) % 7));
      }
    }
  }
  return test::encode_jpeg(pixels.data(), kJpegHeight, kJpegWidth, form);
}

struct Result {
  std::string refused;  // the cause; "" if the file was decoded
  Irregularity irregularity;
  Image image;
};

Result decode_jpeg(const Bytes& file) {
  Result result;
  try {
    result.image = decode_image(file, ColorMode::kRgb, "x.jpg", {}, &result.irregularity);
  } catch (const BadSample& error) {
    result.refused = error.cause();
    EXPECT_TRUE(error.message().starts_with("x.jpg: damaged JPEG (")) << error.message();
  }
  return result;
}

bool same_pixels(const Image& a, const Image& b) {
  return a.height() == b.height() && a.width() == b.width() && a.channels() == b.channels() &&
         std::equal(a.as<uint8_t>(), a.as<uint8_t>() + a.area() * a.channels(), b.as<uint8_t>());
}

/// Offsets of all markers after the first, including restart markers. In a scan, FF 00 is data.
std::vector<size_t> markers(const Bytes& file) {
  std::vector<size_t> result;
  const auto at = [&](size_t i) { return std::to_integer<unsigned>(file[i]); };
  bool in_scan = false;
  for (size_t i = 2; i + 1 < file.size();) {
    if (at(i) != 0xFF || at(i + 1) == 0 || at(i + 1) == 0xFF) {
      EXPECT_TRUE(in_scan) << "no marker at " << i;
      ++i;
      continue;
    }
    const unsigned code = at(i + 1);
    result.push_back(i);
    if (code == 0xD9) break;
    if (code >= 0xD0 && code <= 0xD7) {
      i += 2;
      continue;
    }
    in_scan = code == 0xDA;
    i += 2 + at(i + 2) * 256 + at(i + 3);
  }
  return result;
}

/// Offset of the marker that begins the first scan.
size_t first_scan_of(const Bytes& file) {
  const std::vector<size_t> places = markers(file);
  return *std::find_if(places.begin(), places.end(), [&](size_t place) { return file[place + 1] == std::byte{0xDA}; });
}

Bytes with_inserted(Bytes file, size_t at, size_t count) {
  Bytes extra(count);
  for (size_t i = 0; i < count; ++i) extra[i] = static_cast<std::byte>(i * 37 % 0xFF);  // never FF, the first byte of a marker
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(at), extra.begin(), extra.end());
  return file;
}

TEST(Jpeg, CorrectFilesAreNotIrregular) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    const Result result = decode_jpeg(encoded(form.form));
    EXPECT_EQ(result.refused, "");
    EXPECT_EQ(result.irregularity.kind, "");
    EXPECT_EQ(result.irregularity.message, "");
    EXPECT_EQ(result.image.height(), kJpegHeight);
    EXPECT_EQ(result.image.width(), kJpegWidth);
  }
}

TEST(Jpeg, OnlyTheEndMarkerMayBeMissing) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    const Bytes file = encoded(form.form);
    const Image intact = decode_jpeg(file).image;
    for (size_t size = 4; size < file.size(); ++size) {
      const Result cut = decode_jpeg(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
      if (size < file.size() - 2) {
        ASSERT_EQ(cut.refused, "truncated") << "the first " << size << " of " << file.size() << " bytes";
        continue;
      }
      ASSERT_EQ(cut.refused, "") << "the first " << size << " of " << file.size() << " bytes";
      EXPECT_TRUE(same_pixels(cut.image, intact));
      EXPECT_EQ(cut.irregularity.kind, "no end marker");
      EXPECT_EQ(cut.irregularity.message, "x.jpg: JPEG deviates from the format but was read in full: no end marker");
    }
  }
}

TEST(Jpeg, ExtraneousBytesBeforeAnyMarkerAreSkipped) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    const Bytes file = encoded(form.form);
    const Image intact = decode_jpeg(file).image;
    std::vector<size_t> places = markers(file);
    places.erase(places.begin());  // a file that does not begin with FF D8 FF is not a JPEG, for Pillow as well
    ASSERT_GE(places.size(), 4u);
    const size_t first_scan = first_scan_of(file);
    for (const size_t place : places) {
      for (const size_t count : {1, 2, 7, 8, 9, 300}) {
        const Result result = decode_jpeg(with_inserted(file, place, count));
        ASSERT_EQ(result.refused, "") << count << " bytes at " << place;
        EXPECT_TRUE(same_pixels(result.image, intact)) << count << " bytes at " << place;
        // The bit reader reads 64 bits ahead, so fewer additional bytes after the data of a scan are not detected.
        if (count < 8 && place > first_scan && result.irregularity.kind.empty()) continue;
        EXPECT_EQ(result.irregularity.kind, "extraneous bytes");
        EXPECT_EQ(result.irregularity.message, "x.jpg: JPEG deviates from the format but was read in full: extraneous bytes");
      }
    }
    // Several faults together with a missing end marker. Bytes after the end marker do not belong to the file.
    Bytes several = with_inserted(with_inserted(file, places.back(), 15), places.front(), 6);
    several.erase(several.end() - 2, several.end());
    const Result result = decode_jpeg(several);
    EXPECT_EQ(result.refused, "");
    EXPECT_TRUE(same_pixels(result.image, intact));
    EXPECT_EQ(result.irregularity.kind, "no end marker");
    EXPECT_NE(result.irregularity.message.find("no end marker, extraneous bytes"), std::string::npos) << result.irregularity.message;
    EXPECT_EQ(decode_jpeg(with_inserted(file, file.size(), 50)).irregularity.kind, "");
  }
}

TEST(Jpeg, AnEndMarkerInPlaceOfDataIsRefused) {
  for (const Form& form : kForms) {
    if (form.form.progressive) continue;  // may end after any scan
    SCOPED_TRACE(form.name);
    const Bytes file = encoded(form.form);
    for (size_t size = first_scan_of(file) + 14; size < file.size() - 2; ++size) {
      Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      cut.push_back(std::byte{0xFF});
      cut.push_back(std::byte{0xD9});
      ASSERT_NE(decode_jpeg(cut).refused, "") << "the first " << size << " of " << file.size() << " bytes";
    }
  }
}

TEST(Jpeg, LostRestartMarkersAreRefused) {
  const Bytes file = encoded({.restart_every = 1});
  for (const size_t place : markers(file)) {
    const unsigned code = std::to_integer<unsigned>(file[place + 1]);
    if (code < 0xD0 || code > 0xD7) continue;
    Bytes lost = file;
    lost.erase(lost.begin() + static_cast<std::ptrdiff_t>(place), lost.begin() + static_cast<std::ptrdiff_t>(place) + 2);
    EXPECT_NE(decode_jpeg(lost).refused, "") << "RST" << code - 0xD0;
  }
}

}  // namespace
}  // namespace galley
