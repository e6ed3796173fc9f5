// Laws: written files read back bit-exactly and aligned, by Galley and by the reference implementation; every rule of the format is
// enforced and the error names the tensor; every truncation and every flipped bit of Galley's files is detected.
#include "libcore/weights/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "libcore/base/digest.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

std::string with_length(const std::string& header, const std::string& data = "") {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

SafetensorsTable parse(const std::string& file) { return parse_safetensors(std::as_bytes(std::span(file))); }

std::vector<TensorSource> samples() {
  Tensor image(DType::kF32, {2, 3, 2, 2}, MemoryFormat::channels_last());
  std::vector<double> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) - 7.5;
  image.from_doubles(values);
  Tensor count(DType::kI64, Shape{});
  count.set(Shape{}, 1234567);
  Tensor bytes(DType::kU8, {5});
  bytes.from_doubles({1, 2, 3, 4, 255});
  Tensor half(DType::kBF16, {3});
  half.from_doubles({1, -2, 0.5});
  return {{"bytes", bytes},
          {"layer1.0.conv1.weight", image},
          {"empty", Tensor(DType::kF32, {0, 4})},
          {"bn.num_batches_tracked", count},
          {"half", half}};
}

TEST(Safetensors, RoundTripContiguousAndAligned) {
  const TemporaryFolder folder;
  const Metadata metadata{{"galley.recipe", "model: \"x\"\n"}, {"note", "caf\xc3\xa9 \t"}};
  const WrittenFile written = write_safetensors(folder / "w.safetensors", samples(), metadata);
  const SafetensorsFile file(folder / "w.safetensors");
  EXPECT_EQ(file.metadata().at("galley.recipe"), "model: \"x\"\n");
  EXPECT_EQ(file.metadata().at("note"), "caf\xc3\xa9 \t");
  EXPECT_EQ(file.entries().size(), 5u);
  EXPECT_EQ(written.header_digest, file.header_digest());
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(folder / "w.safetensors")), written.bytes);
  for (const TensorSource& source : samples()) {
    const Tensor read = file.read(source.name);
    EXPECT_TRUE(bit_equal(read, source.values())) << source.name;
    EXPECT_TRUE(read.format().is_contiguous());
    EXPECT_FALSE(read.storage()->writable()) << source.name << " was copied";
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.data()) % static_cast<uintptr_t>(dtype_size(read.dtype())), 0u);
  }
  EXPECT_EQ(file.read("layer1.0.conv1.weight").data_as<float>()[1], -6.5f) << "logical order, not channels_last";
  EXPECT_NO_THROW(file.verify());
  try {
    file.read("layer1.0.conv1.wieght");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("did you mean 'layer1.0.conv1.weight'"), std::string::npos);
  }
}

/// Digest of a set: the digest of one line per tensor in the order of names, with the digests in the file.
TEST(Safetensors, DigestOfASetIsThatOfItsLines) {
  const TemporaryFolder folder;
  std::vector<TensorSource> tensors = samples();
  write_safetensors(folder / "w.safetensors", tensors, {});
  const SafetensorsFile file(folder / "w.safetensors");
  const auto line = [&](const std::string& name, const std::string& type) {
    return cat(file.metadata().at("galley.digest." + name), " ", type, " ", name, "\n");
  };
  const std::string lines = line("bn.num_batches_tracked", "i64 []") + line("bytes", "u8 [5]") + line("empty", "f32 [0,4]") +
                            line("half", "bf16 [3]") + line("layer1.0.conv1.weight", "f32 [2,3,2,2]");
  EXPECT_EQ(digest_of_tensors(tensors), digest_of(lines));
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_EQ(digest_of_tensors(tensors), digest_of(lines)) << "the order of the tensors does not matter";
  tensors[0].name = "other";
  EXPECT_NE(digest_of_tensors(tensors), digest_of(lines));
  EXPECT_EQ(digest_of_tensors({}), digest_of(""));
}

TEST(Safetensors, TensorsOutliveTheFileObject) {
  const TemporaryFolder folder;
  write_safetensors(folder / "w", samples(), {});
  Tensor kept;
  {
    const SafetensorsFile file(folder / "w");
    kept = file.read("half");
  }
  write_safetensors(folder / "w", std::vector<TensorSource>{}, {});
  EXPECT_EQ(kept.to_doubles(), (std::vector<double>{1, -2, 0.5}));
}

TEST(Safetensors, ForeignFilesWithoutAlignmentOrDigests) {
  const TemporaryFolder folder;
  // The values begin at an odd byte, as in files of early writers.
  std::string header =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}, "q":{"dtype":"F8_E5M2","shape":[3],"data_offsets":[8,11]},
          "e":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[11,13]}})";
  if (header.size() % 2 == 0) header += ' ';
  const float values[2] = {1.5f, -2.0f};
  std::string data(13, '\0');
  std::memcpy(data.data(), values, 8);
  data[11] = '\x38';
  data[12] = '\xfe';
  write_file(folder / "f", with_length(header, data));
  const SafetensorsFile file(folder / "f");
  EXPECT_FALSE(file.has_digests());
  EXPECT_NO_THROW(file.verify());
  EXPECT_EQ(file.read("a").to_doubles(), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(file.read("e").to_doubles(), (std::vector<double>{1, -448}));
  try {
    file.read("q");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.text().find("F8_E5M2"), std::string::npos);
  }
}

struct BadFile {
  std::string reason;  ///< Part of the message.
  std::string file;
};

TEST(Safetensors, EveryRuleOfTheFormat) {
  const auto tensor = [](const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const std::string a = tensor("a", "F32", "[1]", "[0,4]");
  std::string huge_length(16, '\xff');
  std::string long_header = with_length("{}");
  long_header[3] = 10;  // 160 MiB
  std::string many = "{";
  for (int i = 0; i <= kSafetensorsEntryLimit; ++i) many += (i ? "," : "") + tensor(std::to_string(i), "U8", "[0]", "[0,0]");
  const std::vector<BadFile> cases{
      {"at least 8 bytes", "1234567"},
      {"at most 100000000", huge_length},
      {"at most 100000000", long_header},
      {"truncated", with_length("{}").substr(0, 9)},
      {"does not start with '{'", with_length("")},
      {"does not start with '{'", with_length(" {}")},
      {"does not start with '{'", with_length("[]")},
      {"not valid JSON", with_length("{" + a, "1234")},
      {"not valid JSON", with_length("{" + a + "}x", "1234")},
      {"not valid JSON", with_length("{\"\xff\xfe\":1}")},
      {"'a' twice", with_length("{" + a + "," + a + "}", "1234")},
      {"'__metadata__' twice", with_length(R"({"__metadata__":{},"__metadata__":{}})")},
      {"key 'k' twice", with_length(R"({"__metadata__":{"k":"1","k":"2"}})")},
      {"must be a string", with_length(R"({"__metadata__":{"k":1}})")},
      {"must be a string", with_length(R"({"__metadata__":{"k":{}}})")},
      {"'dtype' twice", with_length(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234")},
      {"unknown field 'x'", with_length(R"({"a":{"x":1}})")},
      {"'a' has no data_offsets", with_length(R"({"a":{"dtype":"F32","shape":[1]}})")},
      {"'a' has no dtype", with_length(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "1234")},
      {"unknown dtype 'F99'", with_length("{" + tensor("a", "F99", "[1]", "[0,4]") + "}", "1234")},
      {"negative number -1", with_length("{" + tensor("a", "F32", "[-1]", "[0,4]") + "}", "1234")},
      {"the number 1.0", with_length("{" + tensor("a", "F32", "[1.0]", "[0,4]") + "}", "1234")},
      {"a list", with_length("{" + tensor("a", "F32", "[[1]]", "[0,4]") + "}", "1234")},
      {"exceeds 63 bits", with_length("{" + tensor("a", "F32", "[18446744073709551615]", "[0,4]") + "}", "1234")},
      {"exceeds 63 bits", with_length("{" + tensor("a", "F32", "[4611686018427387904,4]", "[0,0]") + "}")},
      {"exceeds 63 bits", with_length("{" + tensor("a", "U8", "[4294967296,4294967296,2]", "[0,0]") + "}")},
      {"more than 8 dimensions", with_length("{" + tensor("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", "1234")},
      {"needs 8 bytes, but its data_offsets span 4", with_length("{" + tensor("a", "F32", "[2]", "[0,4]") + "}", "1234")},
      {"whole number of bytes", with_length("{" + tensor("a", "F4", "[3]", "[0,2]") + "}", "12")},
      {"ends (0) before it begins (4)", with_length("{" + tensor("a", "F32", "[1]", "[4,0]") + "}", "1234")},
      {"has 1 data_offsets", with_length("{" + tensor("a", "F32", "[1]", "[0]") + "}", "1234")},
      {"more than two data_offsets", with_length("{" + tensor("a", "F32", "[1]", "[0,4,8]") + "}", "1234")},
      {"overlaps", with_length("{" + a + "," + tensor("b", "F32", "[1]", "[2,6]") + "}", "123456")},
      {"overlaps", with_length("{" + a + "," + tensor("b", "F32", "[1]", "[0,4]") + "}", "1234")},
      {"belong to no tensor", with_length("{" + tensor("a", "F32", "[1]", "[4,8]") + "}", "12345678")},
      {"belong to no tensor", with_length("{" + a + "," + tensor("b", "F32", "[1]", "[8,12]") + "}", "123456781234")},
      {"truncated or damaged", with_length("{" + a + "}", "123")},
      {"after its last tensor", with_length("{" + a + "}", "12345")},
      {"more than 100000 tensors", with_length(many + "}")},
      {"instead of an object", with_length(R"({"a":[]})")},
      {"instead of an object", with_length(R"({"a":"x"})")},
      {"an object", with_length(R"({"a":{"dtype":{}}})")},
      {"null", with_length(R"({"a":{"shape":null}})")},
      {"instead of an object", with_length("{\"a\":" + std::string(1000000, '['))},
  };
  for (const BadFile& bad : cases) {
    try {
      parse(bad.file);
      ADD_FAILURE() << "accepted; expected '" << bad.reason << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      EXPECT_NE(error.message().find(bad.reason), std::string::npos) << error.message() << "\nexpected: " << bad.reason;
    }
  }
  EXPECT_EQ(parse(with_length("{" + a + "}   ", "1234")).entries.size(), 1u) << "spaces at the header's end are padding";
  EXPECT_EQ(parse(with_length("{" + tensor("a", "F4", "[4]", "[0,2]") + "}", "12")).entries[0].dtype, std::nullopt);
}

TEST(Safetensors, SizesAgreeWith128BitArithmetic) {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const int rank = static_cast<int>(random() % 5);
    std::string shape;
    unsigned __int128 elements = 1;
    bool overflow = false;
    for (int axis = 0; axis < rank; ++axis) {
      const uint64_t size = random() % 3 == 0 ? random() >> (random() % 64) : random() % 5;
      shape += (axis ? "," : "") + std::to_string(size);
      overflow = overflow || size > static_cast<uint64_t>(INT64_MAX);
      elements *= size;
      overflow = overflow || elements * 32 > static_cast<unsigned __int128>(INT64_MAX);
      if (overflow) elements = 1;
    }
    const uint64_t bytes = static_cast<uint64_t>(elements * 4);
    const bool fits = !overflow && bytes <= 4096;
    const std::string data(fits ? bytes : 4, 'x');
    const std::string file = with_length(
        R"({"a":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,)" + std::to_string(fits ? bytes : 4) + "]}}", data);
    bool ok = true;
    try {
      parse(file);
    } catch (const Error&) {
      ok = false;
    }
    ASSERT_EQ(ok, fits) << "[" << shape << "]";
    accepted += ok;
  }
  EXPECT_GT(accepted, 1000);
}

class Damage : public ::testing::Test {
 protected:
  /// "" if the damage is not detected, otherwise the message.
  static std::string found(const std::string& path) {
    try {
      SafetensorsFile(path).verify();
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.text();
    }
  }
};

TEST_F(Damage, EveryTruncationIsFound) {
  const TemporaryFolder folder;
  write_safetensors(folder / "w", samples(), {{"galley.recipe", "x"}});
  const std::string good = read_file(folder / "w");
  for (size_t percent = 1; percent <= 99; ++percent) {
    write_file(folder / "t", good.substr(0, good.size() * percent / 100));
    EXPECT_NE(found(folder / "t"), "") << percent << " %";
  }
  write_file(folder / "t", good + "x");
  EXPECT_NE(found(folder / "t"), "");
}

/// Every third bit: at least two of each byte, and each place in a byte.
TEST_F(Damage, FlippedBitsAreFound) {
  const TemporaryFolder folder;
  write_safetensors(folder / "w", samples(), {{"galley.recipe", "x"}});
  const std::string good = read_file(folder / "w");
  const SafetensorsFile file(folder / "w");
  ASSERT_EQ(found(folder / "w"), "");
  for (size_t bit = 0; bit < good.size() * 8; bit += 3) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    // In place and without fsync: this is many files.
    FILE* out = fopen((folder / "b").c_str(), "wb");
    fwrite(bad.data(), 1, bad.size(), out);
    fclose(out);
    const std::string message = found(folder / "b");
    ASSERT_NE(message, "") << "bit " << bit;
    for (const SafetensorsEntry& entry : file.entries()) {
      if (static_cast<int64_t>(bit / 8) >= entry.begin && static_cast<int64_t>(bit / 8) < entry.end) {
        EXPECT_NE(message.find("'" + entry.name + "'"), std::string::npos) << message;
      }
    }
  }
}

TEST(Safetensors, ValuesAreAskedForOneByOne) {
  const TemporaryFolder folder;
  int alive = 0, most = 0;
  std::vector<TensorSource> sources;
  for (int i = 0; i < 5; ++i) {
    sources.emplace_back("t" + std::to_string(i), DType::kF32, Shape{16}, [&alive, &most] {
      most = std::max(most, ++alive);
      auto owner = std::shared_ptr<float[]>(new float[16](), [&alive](float* data) { delete[] data, --alive; });
      const float* data = owner.get();
      return Tensor(DType::kF32, {16}, {}, Storage::borrow(data, 64, std::move(owner)));
    });
  }
  write_safetensors(folder / "w", sources, {});
  EXPECT_EQ(most, 1);
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace galley
