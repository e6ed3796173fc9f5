// Sources: samples, labels and names in files, and errors of invalid files.
#include <zlib.h>

#include <set>

#include "libcore/data/sources.h"
#include "tests/data/files.h"
#include "tests/data/golden.h"

namespace galley {
namespace {

std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

template <class Options>
std::string source_error(const Options& options, const SourceContext& context = {}) {
  try {
    options.open(context);
    return "";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kInput || error.code() == ErrorCode::kRecipe) << error.text();
    return error.text();
  }
}

void expect_mentions(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << "'" << text << "' does not say '" << word << "'";
}

int64_t red_of(const Source& source, int64_t index) { return source.read(index).image()->as<uint8_t>()[0]; }
int64_t label_of(const Source& source, int64_t index) { return std::get<int64_t>(*source.read(index).find("label")); }

TEST(ImageFolderSource, ClassesAreSortedFolders) {
  const TestFolder folder;
  folder.write("train/dog/b.bmp", bmp_of(2, 0, 0));
  folder.write("train/cat/z/deep.bmp", bmp_of(1, 0, 0));
  folder.write("train/dog/a.BMP", bmp_of(3, 0, 0));
  folder.write("train/dog/notes.txt", "not an image");
  folder.write("train/.cache/x.bmp", "hidden");
  ImageFolder options;
  options.path = {"train"};
  const SourceContext context{.root = folder.path()};
  const auto source = options.open(context);
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->categories(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(red_of(*source, 0), 1);
  EXPECT_EQ(red_of(*source, 1), 3);  // a.BMP before b.bmp
  EXPECT_EQ(label_of(*source, 1), 1);
  EXPECT_TRUE(source->sample_name(2).ends_with("train/dog/b.bmp"));

  options.classes = {"dog", "cat", "bird"};
  const auto ordered = options.open(context);
  EXPECT_EQ(ordered->label(0), 1);
  EXPECT_EQ(ordered->label(1), 0);
  options.classes = {"cat", "dgo"};
  expect_mentions(source_error(options, context), {"dog", "dgo"});
  options.mode = ColorMode::kGray;
  options.classes = {};
  EXPECT_EQ(options.open(context)->read(0).image()->channels(), 1);
}

TEST(ImageFolderSource, MissingAndEmptyFoldersAreErrors) {
  const TestFolder folder;
  ImageFolder options;
  options.path = {"nowhere"};
  expect_mentions(source_error(options, {.root = folder.path()}), {"nowhere", "data.root"});
  options.path = {"*.none"};
  expect_mentions(source_error(options, {.root = folder.path()}), {"*.none"});
  folder.write("flat/a.bmp", bmp_of(0, 0, 0));
  options.path = {"flat"};
  expect_mentions(source_error(options, {.root = folder.path()}), {"no class folders"});
  folder.write("other/cat/readme.txt", "");
  options.path = {"other"};
  Component component;
  component.type = "image_folder";
  component.params = options.clone();
  try {
    open_source(component, {.root = folder.path()});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);  // no samples: exit 5
  }
}

TEST(CheckLabels, NamesTheFirstOffender) {
  std::map<std::string, Tensor> tensors;
  tensors.emplace("input", Tensor(DType::kF32, {3, 2}));
  Tensor label(DType::kI64, {3});
  label.data_as<int64_t>()[2] = 7;
  tensors.emplace("label", label);
  const auto source = source_of_tensors(tensors, "x.safetensors");
  check_labels(*source, 8);
  try {
    check_labels(*source, 7);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    expect_mentions(error.text(), {"x.safetensors[2]", "label 7", "7 classes"});
  }
}

TEST(TarSource, PlainAndCompressedGiveTheSame) {
  const TestFolder folder;
  const std::string archive = tar_of({{"./train/", "", '5'},
                                      {"./train/dog/1.bmp", bmp_of(10, 0, 0)},
                                      {"train/cat/1.bmp", bmp_of(20, 0, 0)},
                                      {"train/readme.txt", "hello"}});
  folder.write("a.tar", archive);
  folder.write("a.tar.gz", gzipped(archive));
  for (const char* name : {"a.tar", "a.tar.gz"}) {
    TarArchive options;
    options.path = {name};
    const auto source = options.open({.root = folder.path()});
    ASSERT_EQ(source->size(), 2) << name;
    EXPECT_EQ(source->categories(), (std::vector<std::string>{"cat", "dog"}));
    EXPECT_EQ(label_of(*source, 0), 1);
    EXPECT_EQ(red_of(*source, 0), 10);
    EXPECT_EQ(red_of(*source, 1), 20);
    EXPECT_TRUE(source->sample_name(0).ends_with(std::string(name) + ":train/dog/1.bmp"));
  }
  TarArchive options;
  options.path = {"a.tar.gz"};
  options.memory = 2000;
  expect_mentions(source_error(options, {.root = folder.path()}), {"2000", "memory"});
}

TEST(TarSource, ReadsXz) {
  const TestFolder folder;
  folder.write("a.tar", tar_of({{"cat/1.bmp", bmp_of(20, 0, 0)}}));
  if (std::system(("xz -k " + folder.path() + "/a.tar").c_str()) != 0) GTEST_SKIP() << "the program xz is not installed";
  TarArchive options;
  options.path = {"a.tar.xz"};
  EXPECT_EQ(red_of(*options.open({.root = folder.path()}), 0), 20);
}

TEST(TarSource, PairsImagesWithCls) {
  const TestFolder folder;
  const auto open = [&](const std::vector<TarEntry>& entries) {
    folder.write("a.tar", tar_of(entries));
    TarArchive options;
    options.path = {"a.tar"};
    options.labels = TarLabels::kCls;
    return options;
  };
  const SourceContext context{.root = folder.path()};
  const std::string image = bmp_of(5, 0, 0);
  const auto source =
      open({{"n/001.bmp", image}, {"n/001.cls", "3\n"}, {"n/002.cls", "0"}, {"n/002.bmp", image}, {"n/002.json", "{}"}}).open(context);
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->label(0), 3);
  EXPECT_EQ(source->label(1), 0);
  expect_mentions(source_error(open({{"1.bmp", image}}), context), {"1.bmp", "no .cls"});
  expect_mentions(source_error(open({{"1.cls", "3"}}), context), {"1.cls", "no image"});
  expect_mentions(source_error(open({{"1.bmp", image}, {"1.png", image}, {"1.cls", "3"}}), context), {"two images"});
  expect_mentions(source_error(open({{"1.bmp", image}, {"1.cls", "cat"}}), context), {"'cat'"});
}

TEST(TarSource, HostileArchivesAreErrors) {
  const TestFolder folder;
  const std::string image = bmp_of(5, 0, 0);
  const auto error = [&](const std::string& archive) {
    folder.write("a.tar", archive);
    TarArchive options;
    options.path = {"a.tar"};
    const std::string plain = source_error(options, {.root = folder.path()});
    folder.write("b.tar.gz", gzipped(archive));
    options.path = {"b.tar.gz"};
    EXPECT_EQ(plain.empty(), source_error(options, {.root = folder.path()}).empty()) << plain;
    return plain;
  };
  EXPECT_EQ(error(tar_of({{"cat/1.bmp", image}})), "");
  expect_mentions(error(tar_of({{"../../etc/1.bmp", image}})), {"unsafe", ".."});
  expect_mentions(error(tar_of({{"cat/../1.bmp", image}})), {"unsafe"});
  expect_mentions(error(tar_of({{"/cat/1.bmp", image}})), {"unsafe"});
  expect_mentions(error(tar_of({{"cat/1\n.bmp", image}})), {"unsafe"});
  expect_mentions(error(tar_of({{"cat/1.bmp", "", '2', "/etc/passwd"}})), {"link"});
  expect_mentions(error(tar_of({{"cat/1.bmp", image}, {"cat/2.bmp", "", '1', "cat/1.bmp"}})), {"link"});
  expect_mentions(error(tar_of({{"cat/1.bmp", "", '3'}})), {"device"});
  expect_mentions(error(tar_of({{"cat/1.bmp", image}, {"dog/1.bmp", image}, {"cat/1.bmp", image}})), {"cat/1.bmp", "twice"});
  expect_mentions(error(tar_of({{"1.bmp", image}})), {"not in a folder"});
  expect_mentions(error(tar_of({{"cat/1.bmp", image}}, 0)), {"truncated"});
  expect_mentions(error(tar_of({{"cat/1.bmp", image}}) + tar_of({{"cat/2.bmp", image}})), {"concatenated"});
  expect_mentions(error(std::string(2000, 'x')), {"a.tar"});

  // A header that claims more bytes than the archive has, with a correct checksum.
  const std::string whole = tar_of({{"cat/1.bmp", image}, {"dog/2.bmp", image}});
  for (size_t size = 1; size < whole.size() - 512; size += 101)
    EXPECT_NE(error(whole.substr(0, size)), "") << size << " of " << whole.size() << " bytes";
}

TEST(TarSource, FlippedHeaderBitsNeverCrash) {
  const TestFolder folder;
  const std::string whole = tar_of({{"cat/1.bmp", bmp_of(5, 0, 0)}, {"dog/2.bmp", bmp_of(5, 0, 0)}});
  int refused = 0;
  for (size_t bit = 0; bit < 512 * 8; bit += 13) {
    std::string archive = whole;
    archive[bit / 8] = static_cast<char>(archive[bit / 8] ^ (1 << bit % 8));
    folder.write("a.tar", archive);
    TarArchive options;
    options.path = {"a.tar"};
    refused += source_error(options, {.root = folder.path()}) != "";
  }
  EXPECT_GT(refused, 300);  // of 316: the header has a checksum
}

std::string idx(const std::vector<int>& sizes, const std::string& data) {
  std::string file{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const int size : sizes)
    file += {static_cast<char>(size >> 24), static_cast<char>(size >> 16), static_cast<char>(size >> 8), static_cast<char>(size)};
  return file + data;
}

TEST(IdxSource, ReadsPairsOfFiles) {
  const TestFolder folder;
  folder.write("train-images-idx3-ubyte", idx({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  folder.write("train-labels-idx1-ubyte.gz", gzipped(idx({2}, {4, 9})));
  const auto source = Idx().open({.root = folder.path()});
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->label(1), 9);
  const Tensor image = source->read(1).image()->to_tensor();
  EXPECT_EQ(image.shape().str(), "[1,2,3]");
  EXPECT_EQ(image.at({0, 1, 0}), 10);
  Idx colored;
  colored.mode = ColorMode::kRgb;
  EXPECT_EQ(colored.open({.root = folder.path()})->read(1).image()->to_tensor().at({2, 1, 0}), 10);
}

TEST(IdxSource, WrongFilesAreErrors) {
  const TestFolder folder;
  const SourceContext context{.root = folder.path()};
  expect_mentions(source_error(Idx(), context), {"train-images-idx3-ubyte", "dataset-fashion-mnist"});
  const std::string images = idx({2, 2, 2}, "abcdefgh"), labels = idx({2}, "ab");
  Idx options;
  options.images = "i";
  expect_mentions(source_error(options, context), {"labels"});
  options.labels = "l";
  const auto error = [&](const std::string& i, const std::string& l) {
    folder.write("i", i);
    folder.write("l", l);
    return source_error(options, context);
  };
  EXPECT_EQ(error(images, labels), "");
  expect_mentions(error(labels, images), {"swapped"});
  expect_mentions(error(images, idx({3}, "abc")), {"2 images", "3 labels"});
  expect_mentions(error(images.substr(0, images.size() - 1), labels), {"truncated"});
  expect_mentions(error(idx({0x7fffffff, 0x7fffffff, 4}, ""), labels), {"too large"});
  expect_mentions(error("", labels), {"too short"});
  expect_mentions(error(gzipped(images).substr(0, 20), labels), {"gzip"});
  std::string flipped = gzipped(images);
  flipped[flipped.size() - 6] = static_cast<char>(flipped[flipped.size() - 6] ^ 1);  // in the CRC
  expect_mentions(error(flipped, labels), {"gzip"});
}

TEST(CifarSource, ReadsRecords) {
  const TestFolder folder;
  std::string record(1, '\x07');
  for (int i = 0; i < 3072; ++i) record += static_cast<char>(i % 251);
  folder.write("data_batch_1.bin", record);
  folder.write("data_batch_2.bin", record + record);
  CifarBinary options;
  options.path = {"data_batch_*.bin"};
  const SourceContext context{.root = folder.path()};
  const auto source = options.open(context);
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->label(0), 7);
  const Tensor image = source->read(2).image()->to_tensor();
  EXPECT_EQ(image.at({2, 3, 5}), (2 * 1024 + 3 * 32 + 5) % 251);
  EXPECT_TRUE(source->sample_name(2).ends_with("data_batch_2.bin[1]"));

  folder.write("c100.bin", std::string{'\x03', '\x2a'} + record.substr(1));
  options.path = {"c100.bin"};
  expect_mentions(source_error(options, context), {"3073", "variant"});
  options.variant = CifarVariant::kCifar100;
  EXPECT_EQ(options.open(context)->label(0), 42);
  options.variant = CifarVariant::kCifar100Coarse;
  EXPECT_EQ(options.open(context)->label(0), 3);
}

TEST(CsvSource, ReadsColumns) {
  const TestFolder folder;
  folder.write("a.csv", "label;x;y;id\r\n1;0.5;-2e1;7\r\n\r\n0;\"1.5\";;8");
  Csv options;
  options.path = {"a.csv"};
  options.delimiter = ";";
  options.header = true;
  options.columns.label = {"label"};
  options.columns.dense = {"1..2"};
  options.columns.sparse = {"id"};
  const SourceContext context{.root = folder.path()};
  expect_mentions(source_error(options, context), {"a.csv:4", "column 2", "empty"});
  options.empty = -1;
  const auto source = options.open(context);
  ASSERT_EQ(source->size(), 2);
  const Sample sample = source->read(0);
  EXPECT_EQ(std::get<Tensor>(*sample.find("input")).to_doubles(), (std::vector<double>{0.5, -20}));
  EXPECT_EQ(std::get<Tensor>(*sample.find("sparse")).to_doubles(), (std::vector<double>{7}));
  EXPECT_EQ(std::get<Tensor>(*source->read(1).find("input")).to_doubles(), (std::vector<double>{1.5, -1}));
  EXPECT_EQ(source->label(0), 1);
  EXPECT_EQ(source->sample_name(1), folder.path() + "/a.csv:4");
}

TEST(CsvSource, WrongTablesAreErrors) {
  const TestFolder folder;
  Csv options;
  options.path = {"a.csv"};
  options.columns.label = {"0"};
  options.columns.dense = {"1"};
  const SourceContext context{.root = folder.path()};
  const auto error = [&](const std::string& text) {
    folder.write("a.csv", text);
    return source_error(options, context);
  };
  EXPECT_EQ(error("1,2\n"), "");
  expect_mentions(error("1,2\n1,2,3\n"), {"a.csv:2", "3 fields"});
  expect_mentions(error("1,2\nx,2\n"), {"a.csv:2", "'x'"});
  expect_mentions(error("1,nan\n"), {"a.csv:1", "finite"});
  expect_mentions(error("1\n"), {"no column 1"});
  expect_mentions(error("1,\"2\n3\n"), {"a.csv:1", "quote"});
  options.columns.dense = {"5..2"};
  expect_mentions(error("1,2\n"), {"5..2", "range"});
}

TEST(TensorsSource, ReadsWhatTheLoaderGives) {
  SourceContext context{.root = "/data"};
  std::map<std::string, Tensor> tensors;
  std::string asked;
  context.load_tensors = [&](const std::string& path) {
    asked = path;
    return tensors;
  };
  TensorFile options;
  options.path = "x.safetensors";
  Tensor input(DType::kF32, {2, 1, 2, 2});
  input.from_doubles({1, 2, 3, 4, 5, 6, 7, 8});
  tensors.emplace("input", input);
  expect_mentions(source_error(options, context), {"/data/x.safetensors", "label"});
  EXPECT_EQ(asked, "/data/x.safetensors");
  Tensor target(DType::kF32, {2, 3});
  target.from_doubles({1, 2, 3, 4, 5, 6});
  tensors.emplace("target", target);
  const auto source = options.open(context);
  EXPECT_EQ(source->read(1).image()->to_tensor().to_doubles(), (std::vector<double>{5, 6, 7, 8}));
  EXPECT_EQ(std::get<Tensor>(*source->read(1).find("target")).to_doubles(), (std::vector<double>{4, 5, 6}));
  EXPECT_EQ(source->label(0), -1);
  tensors.emplace("label", Tensor(DType::kI64, {3}));
  expect_mentions(source_error(options, context), {"number of samples"});
  tensors["label"] = Tensor(DType::kF32, {2});
  expect_mentions(source_error(options, context), {"label", "f32"});
}

TEST(SyntheticSource, IsAFunctionOfSeedAndIndex) {
  Synthetic options;
  options.samples = 64;
  const SourceContext context{.input_shape = {3, 32, 32}, .classes = 10, .seed = 5};
  const auto a = options.open(context), b = options.open(context);
  double sum = 0, squares = 0;
  std::map<int64_t, int> labels;
  for (int64_t i = 0; i < a->size(); ++i) {
    const Tensor x = a->read(i).image()->to_tensor();
    EXPECT_TRUE(bit_equal(x, b->read(i).image()->to_tensor()));
    for (const double v : x.to_doubles()) sum += v, squares += v * v;
    ++labels[a->label(i)];
    EXPECT_EQ(label_of(*a, i), a->label(i));
  }
  // 196,608 numbers of variance 1 and kurtosis 1.8: five standard errors.
  EXPECT_NEAR(sum / 196608, 0, 0.0113);
  EXPECT_NEAR(squares / 196608, 1, 0.0101);
  EXPECT_GT(labels.size(), 7u);
  EXPECT_LT(labels.rbegin()->first, 10);
  SourceContext other = context;
  other.seed = 6;
  EXPECT_FALSE(bit_equal(a->read(0).image()->to_tensor(), options.open(other)->read(0).image()->to_tensor()));
  options.values = SyntheticKind::kInteger;
  expect_mentions(source_error(options, context), {"high"});
  options.high = 50;
  options.shape = {7};
  const Sample sample = options.open(context)->read(3);
  EXPECT_EQ(std::get<Tensor>(*sample.find("input")).str(), "i64 [7] contiguous");
}

/// An unfiltered PNG with one value of `bits` bits per pixel, by the definition of the format (PNG, third edition, sections 5 and 7).
std::string png_of(int bits, bool palette, int width, const std::vector<int>& values) {
  const auto number = [](uint32_t value) {
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
    return text;
  };
  const auto chunk = [&](const std::string& type, const std::string& data) {
    const std::string body = type + data;
    return number(static_cast<uint32_t>(data.size())) + body +
           number(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()))));
  };
  const int height = static_cast<int>(values.size()) / width;
  std::string rows;
  for (int y = 0; y < height; ++y) {
    rows += '\0';
    std::string row(static_cast<size_t>((width * bits + 7) / 8), '\0');
    for (int x = 0; x < width; ++x) {
      const int bit = x * bits;
      row[static_cast<size_t>(bit / 8)] |= static_cast<char>(values[static_cast<size_t>(y * width + x)] << (8 - bits - bit % 8));
    }
    rows += row;
  }
  uLongf size = compressBound(rows.size());
  std::string packed(size, '\0');
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(size);
  std::string colors;
  for (int i = 0; i < (1 << bits); ++i) colors += {static_cast<char>(7 * i), static_cast<char>(255 - i), static_cast<char>(i)};
  const std::string header = number(static_cast<uint32_t>(width)) + number(static_cast<uint32_t>(height)) +
                             std::string{static_cast<char>(bits), static_cast<char>(palette ? 3 : 0), 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + (palette ? chunk("PLTE", colors) : "") + chunk("IDAT", packed) + chunk("IEND", "");
}

TEST(PngValues, AreTheStoredOnes) {
  for (const int bits : {1, 2, 4, 8}) {
    for (const bool palette : {false, true}) {
      std::vector<int> values;
      for (int i = 0; i < 5 * 3; ++i) values.push_back(i * 37 % (1 << bits));
      const std::string png = png_of(bits, palette, 5, values);
      const Image image = decode_png_values(std::as_bytes(std::span(png)), "mask.png");
      ASSERT_EQ(image.str(), "u8 [1,3,5]");
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(image.as<uint8_t>()[i], values[i]) << bits << " bits, palette " << palette;
    }
  }
  const std::string png = png_of(8, true, 5, std::vector<int>(15, 3));
  for (size_t length = 0; length < png.size(); ++length)
    EXPECT_THROW(decode_png_values(std::as_bytes(std::span(png).first(length)), "cut.png"), BadSample) << length;
  Image indices(DType::kU8, 3, 5, 1);
  for (int i = 0; i < 15; ++i) indices.as<uint8_t>()[i] = static_cast<uint8_t>(i % 4);
  const std::vector<Color> palette{{0, 0, 0}, {10, 20, 30}, {200, 100, 50}, {255, 255, 255}};
  const std::string written = encode_palette_png(indices, palette);
  EXPECT_TRUE(bit_equal(decode_png_values(std::as_bytes(std::span(written)), "written.png").to_tensor(), indices.to_tensor()));
  const Image colors = decode_png(std::as_bytes(std::span(written)), "written.png", {});
  for (int i = 0; i < 15; ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(colors.as<uint8_t>()[static_cast<size_t>(3 * i) + c], palette[static_cast<size_t>(i % 4)][c]);
}

TEST(MaskFolderSource, PairsImagesWithMasksOfTheirName) {
  const TestFolder folder;
  folder.write("images/b.bmp", bmp_of(2, 0, 0));
  folder.write("images/town/a.v1.bmp", bmp_of(1, 0, 0));
  std::vector<int> classes(16, 1);
  classes[3] = 0;
  classes[5] = 11;
  folder.write("masks/b.png", png_of(8, false, 4, std::vector<int>(16, 0)));
  folder.write("masks/town/a.v1.png", png_of(4, true, 4, classes));
  folder.write("masks/unused.png", png_of(8, false, 4, std::vector<int>(16, 0)));
  MaskFolder options;
  options.images = "images";
  options.masks = "masks";
  options.num_classes = 3;
  options.ignore_index = 11;
  const SourceContext context{.root = folder.path()};
  const auto source = options.open(context);
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->label(0), -1);
  const Sample sample = source->read(1);
  const uint8_t* values = std::get<Mask>(*sample.find("label")).classes.as<uint8_t>();
  EXPECT_EQ(values[2], 1);
  EXPECT_EQ(values[3], 0);
  EXPECT_EQ(values[5], Mask::kNoClass);
  EXPECT_EQ(source->fields().at(1).classes, 3);
  const auto read_error = [&](int64_t index) {
    try {
      options.open(context)->read(index);
      return std::string();
    } catch (const BadSample& error) {
      return error.text();
    }
  };
  options.ignore_index.reset();
  expect_mentions(read_error(1), {"masks/town/a.v1.png", "column 1, row 1", "class 11", "num_classes is 3", "set ignore_index"});
  options.ignore_index = 11;
  folder.write("masks/b.png", png_of(8, false, 2, std::vector<int>(8, 0)));
  expect_mentions(read_error(0), {"masks/b.png", "2 x 4 pixels", "images/b.bmp has 4 x 4"});
  folder.write("masks/b.png", bmp_of(1, 1, 1));
  expect_mentions(read_error(0), {"masks/b.png", "not a PNG"});
  folder.write("images/c.bmp", bmp_of(3, 0, 0));
  expect_mentions(source_error(options, context), {"images/c.bmp", "no mask", "masks/c.png", "unpaired: skip"});
  options.unpaired = Unpaired::kSkip;
  EXPECT_EQ(options.open(context)->size(), 2);
  options.masks = "nowhere";
  expect_mentions(source_error(options, context), {"nowhere", "data.root"});
  options.masks = "masks";
  options.classes = {"sky"};
  expect_mentions(source_error(options, context), {"1 names", "3"});
}

TEST(SyntheticSource, MakesTheTargetsOfTheTask) {
  Synthetic options;
  options.samples = 4;
  const SourceContext context{.input_shape = {3, 6, 5},
                              .classes = 4,
                              .targets = {{.name = "label", .kind = FieldKind::kMask, .dtype = DType::kI64, .sample = {6, 5}, .classes = 4},
                                          {.name = "target", .sample = {2}}}};
  const auto source = options.open(context);
  EXPECT_EQ(source->label(0), -1);
  ASSERT_EQ(source->fields().size(), 3u);
  std::set<int> seen;
  const Sample sample = source->read(2);
  const Image& mask = std::get<Mask>(*sample.find("label")).classes;
  EXPECT_EQ(mask.str(), "u8 [1,6,5]");
  for (int64_t i = 0; i < mask.area(); ++i) seen.insert(mask.as<uint8_t>()[i]);
  EXPECT_EQ(seen, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(std::get<Tensor>(*sample.find("target")).str(), "f32 [2] contiguous");
}

TEST(SourceTable, EveryKindOpensItself) {
  for (const ComponentKind& kind : data_sources()) {
    const auto fields = kind.make();
    EXPECT_NE(dynamic_cast<SourceOptions*>(fields.get()), nullptr) << kind.type;
    EXPECT_FALSE(kind.doc.empty());
  }
}

}  // namespace
}  // namespace galley
