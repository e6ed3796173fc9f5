// Laws: files of torch.save in every form give the names, types and values that PyTorch wrote (tests/golden/weights, made by make.py);
// contiguous values are mapped, not copied; anything that is not data is rejected by name; damage is detected if the format has checksums,
// otherwise verify reports that it cannot tell.
#include "libcore/weights/pth.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/weights/crc32.h"
#include "libcore/weights/load.h"
#include "libcore/weights/weights_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/weights/hostile.h"

namespace galley {
namespace {

using Json = nlohmann::json;

std::string golden(const std::string& name) { return GALLEY_SOURCE_DIR "/tests/golden/weights/" + name; }
const Json& expected() {
  static const Json json = Json::parse(read_file(golden("expected.json")));
  return json;
}
PthTable parsed_archive(const std::string& bytes) { return parse_pth(std::as_bytes(std::span(bytes))); }

/// The text of the error, "" if the bytes are accepted.
std::string refusal(const std::string& bytes) {
  try {
    parsed_archive(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput) << error.text();
    return error.text();
  }
  return "";
}

TEST(Crc32, AgreesWithTheDefinition) {
  const auto by_bits = [](const std::string& text) {
    uint32_t state = ~0u;
    for (const char letter : text) {
      state ^= static_cast<uint8_t>(letter);
      for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) ? 0xedb88320u : 0);
    }
    return ~state;
  };
  EXPECT_EQ(crc32_of(std::as_bytes(std::span(std::string_view("123456789")))), 0xcbf43926u) << "the check value of ISO 3309";
  std::mt19937 draw(1);
  std::string text;
  for (size_t size = 0; size < 400; ++size) {
    const auto bytes = std::as_bytes(std::span(text));
    EXPECT_EQ(crc32_of(bytes), by_bits(text)) << size;
    EXPECT_EQ(crc32_of(bytes.subspan(size / 3), crc32_of(bytes.first(size / 3))), by_bits(text)) << "in two parts, " << size;
    text += static_cast<char>(draw());
  }
}

TEST(Pth, GoldenFilesGiveWhatPyTorchSaved) {
  const std::map<std::string, std::string> texts{{"float32", "F32"},
                                                 {"float64", "F64"},
                                                 {"float16", "F16"},
                                                 {"bfloat16", "BF16"},
                                                 {"int64", "I64"},
                                                 {"int32", "I32"},
                                                 {"int16", "I16"},
                                                 {"int8", "I8"},
                                                 {"uint8", "U8"},
                                                 {"bool", "BOOL"},
                                                 {"complex64", "C64"},
                                                 {"uint16", "U16"},
                                                 {"float8_e4m3fn", "F8_E4M3"}};
  ASSERT_GE(expected()["files"].size(), 18u);
  for (const auto& [name, wanted] : expected()["files"].items()) {
    SCOPED_TRACE(name);
    const WeightsFile file(golden(name));
    EXPECT_EQ(file.format(), wanted["form"].get<std::string>());
    EXPECT_EQ(file.chosen(), wanted["chosen"].get<std::string>());
    EXPECT_EQ(file.others().size(), wanted["others"].get<size_t>());
    const FileCheck check = file.verify();
    EXPECT_EQ(check.complete(), wanted["checksums"].get<bool>());
    EXPECT_EQ(check.reason.empty(), check.complete());
    ASSERT_EQ(file.tensors().size(), wanted["tensors"].size());
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const OfferedTensor& tensor = file.tensors()[i];
      SCOPED_TRACE(tensor.name);
      ASSERT_TRUE(wanted["tensors"].contains(tensor.name));
      const Json& truth = wanted["tensors"][tensor.name];
      EXPECT_EQ(tensor.dtype_text, texts.at(truth["dtype"].get<std::string>()));
      EXPECT_EQ(std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end()), truth["shape"].get<std::vector<int64_t>>());
      if (truth["values"].is_null()) {
        EXPECT_FALSE(tensor.dtype.has_value());
        EXPECT_THROW(file.read(i), Error);
        continue;
      }
      const Tensor values = file.read(i);
      EXPECT_TRUE(values.format().is_contiguous());
      EXPECT_EQ(values.to_doubles(), truth["values"].get<std::vector<double>>());
      const bool aligned_form = file.format() == "PyTorch zip" && values.elements() > 0 && name != "strided.pth" && name != "shared.pth";
      EXPECT_TRUE(!aligned_form || !values.storage()->writable()) << "was copied";
    }
  }
}

TEST(Pth, RefusesByNameWhatIsNotData) {
  ASSERT_GE(expected()["refused"].size(), 7u);
  for (const auto& [name, reason] : expected()["refused"].items()) {
    try {
      const WeightsFile file(golden(name));
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      EXPECT_NE(error.text().find(reason.get<std::string>()), std::string::npos) << name << ": " << error.text();
      EXPECT_NE(error.text().find(name), std::string::npos) << "the file is not named: " << error.text();
      EXPECT_FALSE(error.suggestion().empty()) << name;
    }
  }
}

TEST(Pth, TensorsOutliveTheFileObject) {
  Tensor kept;
  {
    const PthFile file(golden("protocol2.pth"));
    kept = file.read(file.table().tensors.front());
  }
  EXPECT_EQ(kept.to_doubles(), expected()["files"]["protocol2.pth"]["tensors"]["f32"]["values"].get<std::vector<double>>());
}

TEST(Pth, LoadsIntoAModel) {
  std::string messages;
  set_log_sink([&](LogLevel, const std::string& message) { messages += message; });
  const std::vector<ExpectedTensor> model{{"conv.weight", DType::kF32, {3, 2, 1, 1}},
                                          {"conv.bias", DType::kF32, {3}},
                                          {"bn.weight", DType::kF32, {3}},
                                          {"bn.bias", DType::kF32, {3}},
                                          {"bn.running_mean", DType::kF32, {3}},
                                          {"bn.running_var", DType::kF32, {3}}};
  EXPECT_EQ(load_weights(model, std::vector<LoadRule>{{.from = golden("training.pth")}}).tensors.size(), 6u);
  EXPECT_EQ(load_weights(model, std::vector<LoadRule>{{.from = golden("nested.pth"), .rename = {{"module.", ""}}}}).tensors.size(), 6u);
  EXPECT_EQ(messages, "");
  // f16 and bf16 are cast to f32 without `cast`, since no value changes; f64 is not.
  const std::vector<ExpectedTensor> widened{{"f16", DType::kF32, {5}}, {"bf16", DType::kF32, {2, 2}}};
  const LoadedWeights loaded = load_weights(widened, std::vector<LoadRule>{{.from = golden("protocol2.pth"), .strict = false}});
  EXPECT_EQ(loaded.tensors.at("f16").dtype(), DType::kF32);
  EXPECT_EQ(loaded.tensors.at("f16").to_doubles(),
            expected()["files"]["protocol2.pth"]["tensors"]["f16"]["values"].get<std::vector<double>>());
  EXPECT_NE(messages.find("bf16 to f32, f16 to f32"), std::string::npos) << messages;
  EXPECT_THROW(load_weights(std::vector<ExpectedTensor>{{"f64", DType::kF32, {3}}},
                            std::vector<LoadRule>{{.from = golden("protocol2.pth"), .strict = false}}),
               Error);
  messages.clear();
  load_weights(widened, std::vector<LoadRule>{{.from = golden("no_checksums.pth"), .strict = false}});
  EXPECT_NE(messages.find("without checksums"), std::string::npos);
  set_log_sink({});
}

TEST(Pth, EveryTruncationIsRefused) {
  for (const char* name : {"protocol2.pth", "protocol5.pth", "training.pth", "legacy.pth", "legacy_shared.pth"}) {
    const std::string whole = read_file(golden(name));
    EXPECT_EQ(refusal(whole), "");
    int refused = 0;
    for (size_t percent = 1; percent <= 99; ++percent) refused += !refusal(whole.substr(0, whole.size() * percent / 100)).empty();
    EXPECT_EQ(refused, 99) << name;
    for (size_t cut = 0; cut < whole.size(); cut += 7) EXPECT_NE(refusal(whole.substr(0, cut)), "") << name << " cut at " << cut;
    EXPECT_NE(refusal(whole + "x"), "") << name << ": a byte was appended";
  }
}

/// Bytes of an archive that have no meaning for a reader of stored files: the writing program, attributes, both extra-field identifiers of
/// padding. All other bytes are checked.
std::set<size_t> meaningless_bytes(const std::string& file) {
  std::set<size_t> places;
  const auto u16 = [&](size_t at) { return static_cast<size_t>(static_cast<uint8_t>(file[at]) | static_cast<uint8_t>(file[at + 1]) << 8); };
  for (size_t at = file.find("PK\x01\x02"); at != std::string::npos; at = file.find("PK\x01\x02", at + 4)) {
    for (const size_t byte : {4, 5, 36, 37, 38, 39, 40, 41}) places.insert(at + byte);
  }
  for (size_t at = file.find("PK\x03\x04"); at != std::string::npos; at = file.find("PK\x03\x04", at + 4)) {
    const size_t extra = at + 30 + u16(at + 26);
    if (u16(at + 28) >= 4) places.insert({extra, extra + 1});
  }
  const size_t end = file.find("PK\x06\x06");
  for (size_t byte = 12; byte < 16; ++byte) places.insert(end + byte);  // versions
  return places;
}

TEST(Pth, BitFlipsAreFoundWhereTheFormatCanTell) {
  const TemporaryFolder folder;
  const std::string whole = read_file(golden("training.pth"));
  const std::set<size_t> meaningless = meaningless_bytes(whole);
  std::mt19937 draw(2);
  int found = 0, harmless = 0;
  for (int flip = 0; flip < 2000; ++flip) {
    std::string damaged = whole;
    const size_t byte = draw() % whole.size();
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1 << draw() % 8);
    std::string text = refusal(damaged);
    if (text.empty()) {
      std::ofstream(folder / "f", std::ios::binary) << damaged;
      try {
        PthFile(folder / "f").verify();
      } catch (const Error& error) {
        text = error.text();
      }
    }
    found += !text.empty();
    harmless += text.empty() && meaningless.count(byte) != 0;
    EXPECT_TRUE(!text.empty() || meaningless.count(byte) != 0) << "a flip in byte " << byte << " was not detected";
  }
  EXPECT_EQ(found + harmless, 2000);
  EXPECT_LT(harmless, 200);

  // The older format has no checksums: only its structure is checked, and verify reports that it cannot tell.
  const std::string legacy = read_file(golden("legacy.pth"));
  int refused = 0;
  for (int flip = 0; flip < 2000; ++flip) {
    std::string damaged = legacy;
    const size_t byte = draw() % legacy.size();
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1 << draw() % 8);
    refused += !refusal(damaged).empty();
  }
  EXPECT_GT(refused, 500);
  EXPECT_EQ(WeightsFile(golden("legacy.pth")).verify().checked_bytes, 0);
  EXPECT_NE(WeightsFile(golden("legacy.pth")).verify().reason, "");
}

TEST(WeightsFile, SafetensorsOfOthersCannotTell) {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}   )";
  const std::string whole = hostile::little(header.size(), 8) + header + std::string(256, 'x');
  write_file(folder / "f.safetensors", whole);
  const FileCheck check = WeightsFile(folder / "f.safetensors").verify();
  EXPECT_EQ(check.checked_bytes, 0);
  EXPECT_EQ(check.value_bytes, 256);
  EXPECT_NE(check.reason.find("no checksums"), std::string::npos);
  // Of 2000 flips, those in the header are rejected, except in the tensor's name, which yield another name.
  std::mt19937 draw(3);
  for (int flip = 0; flip < 2000; ++flip) {
    std::string damaged = whole;
    const size_t byte = draw() % whole.size(), name = 8 + 2;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1 << draw() % 8);
    bool refused = false;
    try {
      parse_safetensors(std::as_bytes(std::span(damaged)));
    } catch (const Error&) {
      refused = true;
    }
    const bool spaces = byte >= 8 + header.size() - 3 && byte < 8 + header.size();
    if (byte < 8 + header.size() && byte != name && !spaces) {
      EXPECT_TRUE(refused) << "byte " << byte;
    }
    if (byte >= 8 + header.size()) {
      EXPECT_FALSE(refused);
    }
  }
}

}  // namespace
}  // namespace galley
