// Laws: what the section `lora` leaves open comes from the adapter's folder, else from defaults; the section may not contradict the folder.

#include "libcore/recipe/lora.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

/// A folder with an adapter of the layer fc and the parameters of a head.
class LoraFolder : public testing::Test {
 protected:
  LoraFolder() {
    write_file(folder_ / "adapter_config.json",
               adapter_config_text({.rank = 2, .alpha = 5, .dropout = 0.25, .layers = {"fc"}, .trained = {"head"}}));
    std::vector<TensorSource> tensors;
    const std::pair<const char*, Shape> arrays[] = {
        {"fc.lora_A.weight", {2, 4}}, {"fc.lora_B.weight", {3, 2}}, {"head.bias", {3}}, {"head.weight", {3, 3}}};
    for (const auto& [name, shape] : arrays) tensors.emplace_back(adapter_tensor_name(name), Tensor(DType::kF32, shape));
    write_safetensors(folder_ / "adapter_model.safetensors", tensors, {});
    section_.load = folder_.path();
  }
  /// The key of the error.
  std::string refused() const {
    try {
      lora_choice(section_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      return error.key();
    }
    return "";
  }

  TemporaryFolder folder_;
  LoraSection section_;
};

TEST_F(LoraFolder, GivesWhatTheSectionLeavesOpen) {
  const LoraChoice choice = lora_choice(section_);
  EXPECT_EQ(choice.rank, 2);
  EXPECT_EQ(choice.alpha, 5);
  EXPECT_EQ(choice.dropout, 0.25);
  EXPECT_EQ(choice.match, std::vector<std::string>{"fc"});
  EXPECT_EQ(choice.train, (std::vector<std::string>{"head.bias", "head.weight"})) << "no adapters";
}

TEST_F(LoraFolder, TheSectionTakesPrecedenceWhereItMay) {
  section_.dropout = 0.125;
  section_.match = {"f*"};
  section_.train = {"head.weight"};
  section_.rank = 2;
  section_.alpha = 5;
  const LoraChoice choice = lora_choice(section_);
  EXPECT_EQ(choice.dropout, 0.125);
  EXPECT_EQ(choice.match, std::vector<std::string>{"f*"});
  EXPECT_EQ(choice.train, std::vector<std::string>{"head.weight"});
  resolve_lora(section_);
  EXPECT_EQ(section_.dropout, 0.125);
  EXPECT_EQ(section_.match, std::vector<std::string>{"f*"});
}

TEST_F(LoraFolder, TheSectionDoesNotContradictIt) {
  section_.rank = 4;
  EXPECT_EQ(refused(), "lora.rank");
  section_.rank = 2;
  section_.alpha = 2;
  EXPECT_EQ(refused(), "lora.alpha");
}

TEST(LoraChoice, DefaultsOfANewAdapter) {
  LoraSection section;
  section.match = {"fc"};
  EXPECT_EQ(lora_choice(section).rank, 8);
  EXPECT_EQ(lora_choice(section).alpha, 8);
  section.rank = 16;
  EXPECT_EQ(lora_choice(section).alpha, 16) << "the product is not scaled";
  section.alpha = 4;
  EXPECT_EQ(lora_choice(section).alpha, 4);
  EXPECT_EQ(lora_choice(section).dropout, 0);
  section.match.clear();
  EXPECT_THROW(lora_choice(section), Error);
}

}  // namespace
}  // namespace galley
