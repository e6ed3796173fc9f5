// weights.packed: a second file beside the weights gives the logits of the weights bit for bit, without reading them; a file that is
// damaged, of other weights or of another form is made again, which a message says.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/infer/components.h"
#include "libcore/infer/decoder.h"
#include "libcore/infer/inference.h"
#include "libcore/recipe/recipe.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

constexpr const char* kModel = "{type: gpt2, n_layer: 2, n_head: 2, n_embd: 32, n_positions: 24, initializer_range: 0.3}";

class PackedFileTest : public testing::TestWithParam<const char*> {
 protected:
  PackedFileTest() {
    set_log_sink([this](LogLevel, const std::string& line) { messages_ += line + "\n"; });
    write_weights(1);
  }
  ~PackedFileTest() override { set_log_sink({}); }

  struct Result {
    std::vector<double> logits;
    bool mapped = false;  // all arrays
    std::string messages;
  };
  LoadedRecipe load(const std::string& more, const std::string& model = kModel) const {
    std::ofstream(folder_ / "recipe.yaml") << "recipe: 1\nthreads: 2\ndata: {tokenizer: byte}\nprecision: " << GetParam()
                                           << "\nmodel: " << model << "\n"
                                           << more << "\n";
    return load_recipe(folder_ / "recipe.yaml", recipe_components(), {});
  }
  std::string weights() const { return folder_ / "model.safetensors"; }
  std::string packed() const { return weights() + ".packed"; }
  /// The initial values of a seed.
  void write_weights(int seed) const {
    const LoadedRecipe loaded = load(cat("seed: ", seed));
    const Session session(loaded.recipe);
    Engine engine(session.backend());
    Decoder decoder(session, engine, nullptr);
    std::vector<TensorSource> tensors;
    for (const std::string& name : engine.store().names()) tensors.emplace_back(name, engine.store().get(name));
    write_safetensors(weights(), tensors, {});
  }
  /// Reads a prompt and a further token, and keeps the file.
  Result run(const std::string& key, const std::string& model = kModel) {
    messages_.clear();
    const LoadedRecipe loaded = load("weights: {load: " + weights() + ", packed: " + key + "}", model);
    const Session session(loaded.recipe);
    Engine engine(session.backend());
    Decoder decoder(session, engine, nullptr);
    Result result;
    std::vector<int64_t> row{7, 200, 31, 4, 5};
    result.logits = decoder.next_logits({row}).to_doubles();
    row.push_back(90);
    const std::vector<double> more = decoder.next_logits({row}).to_doubles();
    result.logits.insert(result.logits.end(), more.begin(), more.end());
    result.mapped = true;
    for (const std::string& name : engine.store().names()) result.mapped &= !engine.store().tensor(name).storage()->writable();
    decoder.keep_packed_weights();
    result.messages = messages_;
    return result;
  }
  /// Changes a byte of the packed file.
  void damage(int64_t offset) const {
    std::string bytes = read_file(packed());
    bytes.at(static_cast<size_t>(offset)) ^= 1;
    std::ofstream(packed(), std::ios::binary) << bytes;
  }

  const TemporaryFolder folder_;
  std::string messages_;
};

TEST_P(PackedFileTest, IsMappedAndGivesTheSameBits) {
  const Result plain = run("auto");
  EXPECT_FALSE(file_exists(packed())) << "only `write` creates the file";
  const Result first = run("write");
  EXPECT_FALSE(first.mapped);
  EXPECT_EQ(first.logits, plain.logits);
  ASSERT_TRUE(file_exists(packed()));
  EXPECT_NE(first.messages.find("wrote " + packed()), std::string::npos) << first.messages;
  const auto time = std::filesystem::last_write_time(packed());
  for (const char* key : {"auto", "write"}) {
    const Result second = run(key);
    EXPECT_TRUE(second.mapped);
    EXPECT_EQ(second.logits, plain.logits);
    EXPECT_EQ(second.messages, "");
  }
  EXPECT_EQ(std::filesystem::last_write_time(packed()), time) << "written again";
  EXPECT_FALSE(run("none").mapped);
  // The weights themselves are not read where their size and time are those of the file.
  const auto state = std::filesystem::last_write_time(weights());
  const auto size = std::filesystem::file_size(weights());
  std::string bytes = read_file(weights());
  std::fill(bytes.end() - 64, bytes.end(), '\0');
  std::ofstream(weights(), std::ios::binary) << bytes;
  std::filesystem::last_write_time(weights(), state);
  ASSERT_EQ(std::filesystem::file_size(weights()), size);
  EXPECT_EQ(run("auto").logits, plain.logits);
}

TEST_P(PackedFileTest, DamageIsFoundAndRepaired) {
  const Result plain = run("write");
  const std::string whole = read_file(packed());
  // The parts of the header, the list, and the first byte of some arrays.
  std::vector<int64_t> offsets{0, 20, 50, static_cast<int64_t>(whole.find("transformer.h.0"))};
  const std::string key = "\"offset\":";
  size_t arrays = 0;
  for (size_t at = whole.find(key); at != std::string::npos; at = whole.find(key, at + 1)) {
    if (arrays++ % 8 == 0) offsets.push_back(std::stoll(whole.substr(at + key.size(), 20)));
  }
  ASSERT_GT(arrays, 24u);
  for (const int64_t offset : offsets) {
    damage(offset);
    const Result repaired = run("auto");
    EXPECT_FALSE(repaired.mapped) << offset;
    EXPECT_EQ(repaired.logits, plain.logits) << offset;
    EXPECT_NE(repaired.messages.find("made again"), std::string::npos) << offset << " " << repaired.messages;
    const Result next = run("auto");
    EXPECT_TRUE(next.mapped) << offset;
    EXPECT_EQ(next.messages, "") << offset;
  }
  for (const size_t kept : {size_t{0}, size_t{30}, size_t{60}, whole.size() / 2, whole.size() - 4096}) {
    std::ofstream(packed(), std::ios::binary) << whole.substr(0, kept);
    EXPECT_EQ(run("auto").logits, plain.logits) << kept;
    EXPECT_TRUE(run("auto").mapped) << kept;
  }
}

TEST_P(PackedFileTest, OtherWeightsReplaceIt) {
  const Result old = run("write");
  write_weights(2);
  const Result other = run("auto");
  EXPECT_FALSE(other.mapped);
  EXPECT_NE(other.logits, old.logits);
  EXPECT_NE(other.messages.find("is of other weights; it is made again"), std::string::npos) << other.messages;
  const Result next = run("auto");
  EXPECT_TRUE(next.mapped);
  EXPECT_EQ(next.logits, other.logits);
  // Only their time has changed.
  std::filesystem::last_write_time(weights(), std::filesystem::file_time_type::clock::now() - std::chrono::hours(5));
  EXPECT_TRUE(run("auto").mapped);
}

TEST_P(PackedFileTest, AnotherModelDoesNotTakeItsArrays) {
  run("write");
  EXPECT_THROW(run("auto", "{type: gpt2, n_layer: 3, n_head: 2, n_embd: 32, n_positions: 24}"), Error) << "the weights do not fit";
  EXPECT_NE(messages_.find("has no transformer.h.2"), std::string::npos) << messages_;
}
INSTANTIATE_TEST_SUITE_P(Precision, PackedFileTest, testing::Values("f32", "bf16"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace galley
