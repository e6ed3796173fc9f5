// Image files: pixels equal Pillow's; damaged files are rejected.
#include "libcore/data/codec.h"

#include <zlib.h>

#include "libcore/base/philox.h"
#include "libcore/data/sample.h"
#include "tests/data/golden.h"

namespace galley {
namespace {

Image decode(std::span<const std::byte> file, ColorMode mode = ColorMode::kRgb) { return decode_image(file, mode, "test file"); }

/// The cause of the rejection; "" if the file is accepted.
std::string refusal(std::span<const std::byte> file) {
  try {
    decode(file);
    return "";
  } catch (const BadSample& error) {
    EXPECT_NE(error.message().find("test file"), std::string::npos);
    return error.cause();
  }
}

TEST(Decode, EqualsPillow) {
  int count = 0;
  for (const auto& [name, file] : goldens()) {
    if (!name.starts_with("file ") || !goldens().contains("rgb " + name.substr(5))) continue;
    // Both decode JPEGs by libjpeg-turbo with the accurate DCT and smooth chroma; another version may round one level apart.
    const Difference tolerance = name.find("jpeg") != std::string::npos ? Difference{1, 0.02} : Difference{0, 0};
    expect_near(decode(file.data), golden("rgb " + name.substr(5)), tolerance, name);
    const auto gray = goldens().find("gray " + name.substr(5));
    if (gray != goldens().end()) expect_near(decode(file.data, ColorMode::kGray), gray->second, tolerance, name + " as gray");
    ++count;
  }
  EXPECT_EQ(count, 11);
}

TEST(Decode, OtherFormatsAreNamed) {
  for (const auto& [format, expected] : {std::pair{"GIF", "a GIF image"}, {"WEBP", "a WebP image"}, {"TIFF", "a TIFF image"}}) {
    try {
      decode(golden(cat("file ", format)).data);
      ADD_FAILURE() << format << " was accepted";
    } catch (const BadSample& error) {
      EXPECT_NE(error.message().find(expected), std::string::npos) << error.message();
      EXPECT_EQ(error.cause(), "format");
    }
  }
  EXPECT_EQ(refusal(std::as_bytes(std::span("hello, world"))), "format");
  EXPECT_EQ(refusal({}), "empty");
}

TEST(Decode, EveryTruncationIsRefused) {
  for (const char* name : {"jpeg 420", "jpeg progressive", "jpeg gray", "png rgb", "png palette", "bmp 24", "bmp 8"}) {
    const std::vector<std::byte>& file = golden(cat("file ", name)).data;
    for (size_t percent = 0; percent < 100; ++percent) {
      const std::string cause = refusal(std::span(file).first(file.size() * percent / 100));
      EXPECT_NE(cause, "") << name << " cut at " << percent << " %";
    }
    // The last byte of a JPEG is half of the end marker, not data (codec_jpeg_test).
    const size_t lost = std::string_view(name).starts_with("jpeg") ? 3 : 1;
    EXPECT_NE(refusal(std::span(file).first(file.size() - lost)), "") << name << " without its last bytes";
  }
}

TEST(Decode, EveryPngBitFlipIsRefused) {
  std::vector<std::byte> file = golden("file png rgb").data;
  RandomStream random(11, "bit flips");
  for (int i = 0; i < 2000; ++i) {
    const size_t bit = random.below(file.size() * 8);
    file[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(refusal(file), "") << "bit " << bit;
    file[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  EXPECT_EQ(refusal(file), "");
}

TEST(Decode, DamagedBytesNeverCrash) {
  // JPEG and BMP cannot detect all damage; then the file is accepted. With a sanitizer, this test checks memory accesses.
  for (const char* name : {"jpeg 420", "jpeg progressive", "jpeg cmyk", "bmp 24", "bmp 8"}) {
    const std::vector<std::byte>& original = golden(cat("file ", name)).data;
    int refused = 0;
    for (uint64_t i = 0; i < 500; ++i) {
      RandomStream random(12, name, i);
      std::vector<std::byte> file = original;
      for (int k = 0; k < 4; ++k) file[random.below(file.size())] = static_cast<std::byte>(random.below(256));
      refused += refusal(file) != "";
    }
    EXPECT_GT(refused, 0) << name;
  }
}

void put_chunk(std::vector<std::byte>& file, const std::string& type, const std::vector<std::byte>& data) {
  const auto put = [&](uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<std::byte>(value >> shift));
  };
  put(static_cast<uint32_t>(data.size()));
  const size_t start = file.size();
  for (const char c : type) file.push_back(static_cast<std::byte>(c));
  file.insert(file.end(), data.begin(), data.end());
  put(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(&file[start]), static_cast<uInt>(data.size() + 4))));
}

/// A PNG with correct checksums that claims a size and contains `raw` bytes of zeros, compressed.
std::vector<std::byte> forged_png(uint32_t width, uint32_t height, size_t raw) {
  std::vector<std::byte> file;
  for (const char c : {'\x89', 'P', 'N', 'G', '\r', '\n', '\x1a', '\n'}) file.push_back(static_cast<std::byte>(c));
  std::vector<std::byte> header;
  for (const uint32_t value : {width, height})
    for (int shift = 24; shift >= 0; shift -= 8) header.push_back(static_cast<std::byte>(value >> shift));
  for (const int value : {8, 2, 0, 0, 0}) header.push_back(static_cast<std::byte>(value));
  put_chunk(file, "IHDR", header);
  const std::vector<Bytef> zeros(raw);
  uLongf size = compressBound(raw);
  std::vector<std::byte> packed(size);
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, zeros.data(), raw);
  packed.resize(size);
  put_chunk(file, "IDAT", packed);
  put_chunk(file, "IEND", {});
  return file;
}

TEST(Decode, BombsAreRefusedBeforeMemoryIsTaken) {
  EXPECT_EQ(refusal(forged_png(4, 4, 4 * 13)), "");
  EXPECT_EQ(refusal(forged_png(60000, 60000, 16)), "too large");
  EXPECT_EQ(refusal(forged_png(16000, 16000, 16)), "too large");
  EXPECT_EQ(refusal(forged_png(0, 4, 16)), "corrupt");
  EXPECT_EQ(refusal(forged_png(4, 4, 64 << 20)), "corrupt");  // 64 kB that inflate to 64 MiB for 16 pixels
  EXPECT_EQ(refusal(forged_png(4, 4, 13)), "corrupt");        // too few rows
}

TEST(Suffix, KnowsImages) {
  EXPECT_TRUE(has_image_suffix("a/b.JPG"));
  EXPECT_TRUE(has_image_suffix("x.webp"));
  EXPECT_FALSE(has_image_suffix("x.txt"));
  EXPECT_FALSE(has_image_suffix("jpg"));
}

}  // namespace
}  // namespace galley
