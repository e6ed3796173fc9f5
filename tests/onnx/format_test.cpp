// ONNX files as data: written files read back equal; damaged or hostile files are rejected before memory is allocated for them.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "libcore/base/error.h"
#include "libcore/onnx/write.h"
#include "tests/onnx/records.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

using namespace onnx_records;

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

/// The message of the error; fails if the file is accepted.
std::string refusal(const std::string& file) {
  try {
    parse_onnx(as_bytes(file));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "a file of " << file.size() << " bytes was accepted";
  return "";
}
void expect_refused(const std::string& file, std::string_view reason) {
  const std::string message = refusal(file);
  EXPECT_NE(message.find(reason), std::string::npos) << message << "\nis to name: " << reason;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string& path, const std::string& contents) { std::ofstream(path, std::ios::binary) << contents; }

OnnxDocument document() {
  OnnxDocument made;
  OnnxNode node{.name = "a/Conv", .op_type = "Conv", .inputs = {"x", "a.weight"}, .outputs = {"y"}};
  node.attributes.push_back({.name = "group", .kind = OnnxAttributeKind::kInt, .i = -3});
  node.attributes.push_back({.name = "alpha", .kind = OnnxAttributeKind::kFloat, .f = 0.5});
  node.attributes.push_back({.name = "pads", .kind = OnnxAttributeKind::kInts, .ints = {1, -2, int64_t{1} << 40}});
  node.attributes.push_back({.name = "mode", .kind = OnnxAttributeKind::kString, .s = "linear"});
  OnnxAttribute value{.name = "value", .kind = OnnxAttributeKind::kTensor};
  value.tensor.emplace();
  value.tensor->values = Tensor::of({2}, {1.5f, -2.5f});
  node.attributes.push_back(value);
  made.nodes = {node};
  made.initializers.push_back({"a.weight", DType::kF32, {2, 3}, [] { return Tensor::of({2, 3}, {1, 2, 3, 4, 5, 6}); }});
  made.initializers.push_back({"a.index", DType::kI64, {2}, [] {
                                 Tensor t(DType::kI64, {2});
                                 t.from_doubles({7, -8});
                                 return t;
                               }});
  OnnxDimension batch;
  batch.name = "N";
  OnnxDimension three;
  three.size = 3;
  made.inputs.push_back({.name = "x", .data_type = 1, .has_shape = true, .shape = {batch, three}});
  made.outputs.push_back({.name = "y", .data_type = 1, .has_shape = true, .shape = {batch}});
  made.metadata = {{"galley.recipe", "recipe: 1"}};
  return made;
}

TEST(OnnxFormat, ComesBackAsWritten) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  const int64_t bytes = write_onnx(path, document()).bytes;
  EXPECT_EQ(bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
  const OnnxFile file(path);
  const OnnxModel& model = file.model();
  EXPECT_EQ(model.ir_version, 8);
  EXPECT_EQ(model.opset(), 17);
  EXPECT_EQ(model.producer, "galley");
  EXPECT_EQ(model.metadata.at("galley.recipe"), "recipe: 1");
  ASSERT_EQ(model.nodes.size(), 1u);
  const OnnxNode& node = model.nodes[0];
  EXPECT_EQ(node.str(), "Conv 'a/Conv'");
  EXPECT_EQ(node.inputs, (std::vector<std::string>{"x", "a.weight"}));
  EXPECT_EQ(node.find("group")->i, -3);
  EXPECT_EQ(node.find("alpha")->f, 0.5);
  EXPECT_EQ(node.find("pads")->ints, (std::vector<int64_t>{1, -2, int64_t{1} << 40}));
  EXPECT_EQ(node.find("mode")->s, "linear");
  EXPECT_EQ(file.read(*node.find("value")->tensor).to_doubles(), (std::vector<double>{1.5, -2.5}));
  ASSERT_EQ(model.initializers.size(), 2u);
  EXPECT_EQ(model.initializers[0].shape, Shape({2, 3}));
  EXPECT_EQ(file.read(model.initializers[0]).to_doubles(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(file.read(model.initializers[1]).to_doubles(), (std::vector<double>{7, -8}));
  ASSERT_EQ(model.inputs.size(), 1u);
  EXPECT_EQ(model.inputs[0].shape[0].name, "N");
  EXPECT_EQ(model.inputs[0].shape[1].size, 3);
  file.verify();
}

TEST(OnnxFormat, TruncationsAndFlippedBitsOfOurFilesAreFound) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  write_onnx(path, document());
  const std::string whole = read(path);
  const auto damaged = [&](const std::string& contents) {
    const std::string copy = folder / "damaged.onnx";
    write(copy, contents);
    try {
      const OnnxFile file(copy);
      file.verify();
      return !file.has_digest();  // indistinguishable from a file of another program
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return true;
    }
  };
  EXPECT_FALSE(damaged(whole));
  for (size_t length = 0; length < whole.size(); ++length) EXPECT_TRUE(damaged(whole.substr(0, length))) << length;
  EXPECT_TRUE(damaged(whole + std::string("\x28\x01", 2)));
  int taken = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); bit += 3) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    taken += !damaged(flipped);
  }
  EXPECT_EQ(taken, 0);
}

TEST(OnnxFormat, LargeValuesLieBesideTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  const auto of_size = [](int64_t count, double first) {
    OnnxDocument made = document();
    for (const char* name : {"b.weight", "c.weight"}) {
      made.initializers.push_back({name, DType::kF32, {count}, [=] {
                                     Tensor t(DType::kF32, {count});
                                     std::vector<double> values(static_cast<size_t>(count), first);
                                     values.back() = name[0];
                                     t.from_doubles(values);
                                     return t;
                                   }});
    }
    return made;
  };
  const auto data_files = [&] {
    std::vector<std::string> names;
    for (const FolderEntry& entry : list_folder(folder.path())) {
      if (entry.name != "m.onnx") names.push_back(entry.name);
    }
    return names;
  };
  EXPECT_EQ(write_onnx(path, of_size(1000, 1), 20000).data_file, "");  // fits
  EXPECT_TRUE(data_files().empty());
  const OnnxWritten written = write_onnx(path, of_size(1000, 1), 8000);
  EXPECT_TRUE(written.data_file.starts_with("m.onnx.data-")) << written.data_file;
  EXPECT_EQ(data_files(), std::vector<std::string>{written.data_file});
  EXPECT_EQ(written.bytes, static_cast<int64_t>(std::filesystem::file_size(path) + std::filesystem::file_size(folder / written.data_file)));
  {
    const OnnxFile file(path);
    ASSERT_EQ(file.model().initializers.size(), 4u);
    EXPECT_EQ(file.model().initializers[0].external, "");  // small values stay in the model
    EXPECT_EQ(file.read(file.model().initializers[0]).to_doubles(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
    for (const size_t i : {2, 3}) {
      EXPECT_EQ(file.model().initializers[i].external, written.data_file);
      EXPECT_EQ(file.model().initializers[i].begin % 4096, 0);
      const std::vector<double> values = file.read(file.model().initializers[i]).to_doubles();
      EXPECT_EQ(values.front(), 1);
      EXPECT_EQ(values.back(), i == 2 ? 'b' : 'c');
    }
    file.verify();
  }
  // The same model has the same data file name; another model's values replace the old file.
  EXPECT_EQ(write_onnx(path, of_size(1000, 1), 8000).data_file, written.data_file);
  const OnnxWritten second = write_onnx(path, of_size(1000, 2), 8000);
  EXPECT_NE(second.data_file, written.data_file);
  EXPECT_EQ(data_files(), std::vector<std::string>{second.data_file});
  // Damage of the values is detected; a missing data file is an error with its name.
  const std::string data = folder / second.data_file, whole = read(data);
  const auto code_of = [&](auto use) {
    try {
      use(OnnxFile(path));
    } catch (const Error& error) {
      EXPECT_NE(error.message().find(second.data_file), std::string::npos) << error.message();
      return static_cast<int>(error.code());
    }
    return 0;
  };
  std::string flipped = whole;
  flipped[5000] = static_cast<char>(flipped[5000] ^ 4);
  write(data, flipped);
  EXPECT_EQ(code_of([](const OnnxFile& file) { file.verify(); }), static_cast<int>(ErrorCode::kInput));
  write(data, whole.substr(0, whole.size() - 1));
  EXPECT_EQ(code_of([](const OnnxFile& file) { file.read(file.model().initializers[3]); }), static_cast<int>(ErrorCode::kInput));
  std::filesystem::remove(data);
  EXPECT_EQ(code_of([](const OnnxFile& file) { file.read(file.model().initializers[2]); }), static_cast<int>(ErrorCode::kInput));
  // A model that fits again has no such file.
  EXPECT_EQ(write_onnx(path, document()).data_file, "");
  EXPECT_TRUE(data_files().empty());
}

TEST(OnnxFormat, SpelledNumbersAreRead) {
  // float_data packed and one by one, int32_data for small types, int64_data, one boolean without dimensions.
  const std::string packed("\0\0\x80\x3f\0\0\0\x40", 8);
  const std::string graph =
      initializer(number(1, 2) + number(2, 1) + bytes(8, "a") + bytes(4, packed)) +
      initializer(number(1, 1) + number(2, 1) + bytes(8, "b") + varint(4 << 3 | 5) + std::string("\0\0\x80\xbf", 4)) +
      initializer(number(1, 3) + number(2, 3) + bytes(8, "c") + bytes(5, varint(5) + varint(static_cast<uint64_t>(-7)) + varint(127))) +
      initializer(number(1, 1) + number(2, 7) + bytes(8, "d") + number(7, -9)) + initializer(number(2, 9) + bytes(8, "e") + number(5, 1));
  const std::string file = model(graph);
  const OnnxModel read = parse_onnx(as_bytes(file));
  ASSERT_EQ(read.initializers.size(), 5u);
  const std::vector<std::vector<double>> expected{{1, 2}, {-1}, {5, -7, 127}, {-9}, {1}};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(read.initializers[i].values.to_doubles(), expected[i]) << read.initializers[i].name;
}

TEST(OnnxFormat, HostileRecordsAreRefused) {
  parse_onnx(as_bytes(model(small_graph())));  // the valid graph from which the cases are derived
  expect_refused("", "no graph");
  expect_refused(number(1, 8), "no graph");
  expect_refused(bytes(7, small_graph()), "ir_version");
  expect_refused(model(small_graph()) + bytes(7, small_graph()), "two graphs");
  // Encodings.
  expect_refused(number(1, 8) + varint(7 << 3 | 2) + varint(uint64_t{1} << 62), "claims 4611686018427387904 bytes");
  expect_refused(number(1, 8) + varint(7 << 3 | 2) + varint((uint64_t{1} << 32) + 1) + "x", "claims");
  expect_refused(number(1, 8) + varint(7 << 3 | 2) + std::string(11, '\xff'), "damaged");
  expect_refused(number(1, 8) + varint(7 << 3 | 3), "damaged");  // a group, which the format does not have
  expect_refused(number(1, 8) + number(7, 5), "encoded as");
  expect_refused(number(1, 8) + bytes(7, node("Relu", number(1, 3), out("y"))), "encoded as");
  expect_refused(model(node("Relu", in("\xff\xfe"), out("y"))), "UTF-8");
  // Sizes that do not match the values.
  const auto with = [](const std::string& tensor) { return model(initializer(tensor) + ends()); };
  expect_refused(with(tensor("w", number(1, 3) + number(1, 2), 1, std::string(23, '\0'))), "needs 24 bytes");
  expect_refused(with(tensor("w", number(1, int64_t{1} << 40) + number(1, int64_t{1} << 40), 1, "")), "too large");
  expect_refused(with(tensor("w", number(1, int64_t{1} << 50), 1, "")), "bytes of values");
  expect_refused(with(number(1, int64_t{1} << 50) + number(2, 1) + bytes(8, "w")), "bytes of values");
  expect_refused(with(tensor("w", number(1, -1), 1, "")), "negative");
  std::string many;
  for (int i = 0; i < 9; ++i) many += number(1, 1);
  expect_refused(with(tensor("w", many, 1, std::string(4, '\0'))), "more than 8 dimensions");
  expect_refused(with(tensor("w", number(1, 1), 99, std::string(4, '\0'))), "unknown type 99");
  expect_refused(with(number(1, 1) + number(2, 7) + bytes(8, "w") + bytes(4, std::string(4, '\0'))), "has float_data");
  expect_refused(with(tensor("w", number(1, 1), 1, std::string(4, '\0')) + bytes(9, std::string(4, '\0'))), "values twice");
  expect_refused(model(weight() + weight() + ends()), "two initializers 'w'");
  expect_refused(model(bytes(15, "") + ends()), "sparse");
  // Too many records: each costs more memory than its two bytes.
  std::string nodes;
  for (int i = 0; i < 1'000'001; ++i) nodes += std::string("\x5a\x00", 2);
  expect_refused(model(nodes), "more than 1000000");
}

TEST(OnnxFormat, ValuesInOtherFilesAreReadFromTheFoldersBelowAlone) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "model");
  write(folder / "secret", std::string(24, 'x'));
  write(folder / "model/weights.bin", std::string(8, '\0') + std::string("\0\0\x80\x3f", 4) + std::string(20, '\0'));
  std::filesystem::create_symlink(folder / "secret", folder / "model/link");
  const auto at = [&](const std::string& location, int64_t offset = 8) {
    const std::string outside =
        number(1, 3) + number(1, 2) + number(2, 1) + bytes(8, "w") + bytes(13, bytes(1, "location") + bytes(2, location)) +
        bytes(13, bytes(1, "offset") + bytes(2, std::to_string(offset))) + bytes(13, bytes(1, "length") + bytes(2, "24")) + number(14, 1);
    const std::string path = folder / "model/m.onnx";
    write(path, model(initializer(outside) + ends()));
    const OnnxFile file(path);
    return file.read(file.model().initializers.at(0));
  };
  EXPECT_EQ(at("weights.bin").to_doubles(), (std::vector<double>{1, 0, 0, 0, 0, 0}));
  for (const char* location : {"../secret", "/etc/passwd", "a/../../secret", "./weights.bin", "", "sub//x", "link", "missing.bin"}) {
    try {
      at(location, 0);
      ADD_FAILURE() << location << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput) << location;
    }
  }
  EXPECT_THROW(at("weights.bin", 9), Error);  // beyond its end
}

TEST(OnnxFormat, IsToldFromOtherFormats) {
  EXPECT_TRUE(is_onnx(as_bytes(model(small_graph()))));
  const std::string safetensors = std::string("\x08\0\0\0\0\0\0\0", 8) + "{}      ";
  EXPECT_FALSE(is_onnx(as_bytes(safetensors)));
  EXPECT_FALSE(is_onnx(as_bytes(std::string("PK\x03\x04________", 12))));
  EXPECT_FALSE(is_onnx(as_bytes(std::string("\x80\x02}q\x01________", 13))));
}

}  // namespace
}  // namespace galley
