// `cmake --install` into an empty prefix: the tree works from any directory, without the build and the sources.

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

namespace fs = std::filesystem;

/// One installation for all tests of this file.
class Install : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new std::string(testing::TempDir() + "galley_install_" + std::to_string(getpid()));
    // Installed in one place and used in another: nothing may depend on the prefix.
    installed_ = new Outcome(shell("cmake --install " GALLEY_BUILD_DIR " --prefix " + *root_ + "/first && mv " + *root_ + "/first " +
                                   *root_ + "/prefix && mkdir " + *root_ + "/elsewhere"));
  }
  static void TearDownTestSuite() {
    fs::remove_all(*root_);
    delete root_;
    delete installed_;
  }
  void SetUp() override { ASSERT_EQ(installed_->code, 0) << installed_->out << installed_->err; }

  static std::string prefix() { return *root_ + "/prefix"; }
  /// A script that runs in another directory, with only the installed programs and the system's on its PATH.
  static Outcome elsewhere(const std::string& script) {
    return shell("unset GALLEY_RECIPES LD_LIBRARY_PATH; export PATH=" + prefix() + "/bin:/usr/bin:/bin; cd " + *root_ + "/elsewhere; " +
                 script);
  }

 private:
  static inline std::string* root_ = nullptr;
  static inline Outcome* installed_ = nullptr;
};

TEST_F(Install, GalleyListsTheVerbs) {
  const Outcome listed = elsewhere("galley");
  EXPECT_EQ(listed.code, 0) << listed.err;
  for (const char* verb :
       {"train", "evaluate", "predict", "calibrate", "quantize", "benchmark", "profile", "convert-layout", "recipes", "weights"})
    EXPECT_NE(listed.out.find(std::string("\n  ") + verb + " "), std::string::npos) << verb << " is missing in\n" << listed.out;
}

TEST_F(Install, ARecipeTrainsByItsName) {
  const Outcome trained = elsewhere("galley train fashion_mnist_cnn --with data/tiny_synthetic train.duration='2 steps' threads=1 -o run");
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(fs::exists(prefix() + "/../elsewhere/run/result.json"));
}

TEST_F(Install, RecipesAreThoseOfThePrefix) {
  const std::string recipes = prefix() + "/share/galley/recipes/train";
  write_text(recipes + "/only_installed.yaml", "recipe: 1\nname: only_installed\nmodel: {type: cnn, num_classes: 3}\n");
  const Outcome shown = elsewhere("galley recipes show only_installed");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("only_installed"), std::string::npos) << shown.out;
  fs::remove(recipes + "/only_installed.yaml");
  EXPECT_NE(elsewhere("galley recipes show only_installed").code, 0);
}

TEST_F(Install, LibrariesAreNotThoseOfTheBuild) {
  const Outcome linked = elsewhere("ldd " + prefix() + "/bin/galley-train");
  EXPECT_EQ(linked.out.find(GALLEY_BUILD_DIR), std::string::npos) << linked.out;
  EXPECT_EQ(linked.out.find("not found"), std::string::npos) << linked.out;
  if (fs::exists(prefix() + "/lib/galley")) {
    EXPECT_NE(linked.out.find("/lib/galley/libdnnl"), std::string::npos) << linked.out;
  }
}

TEST_F(Install, CompletionOffersVerbsAndOptions) {
  const std::string completions = prefix() + "/share/bash-completion/completions/";
  const Outcome verbs = elsewhere("source " + completions + "galley; COMP_WORDS=(galley pr); COMP_CWORD=1; _galley; echo ${COMPREPLY[@]}");
  EXPECT_EQ(verbs.out, "predict profile\n") << verbs.err;
  const std::string option = "COMP_WORDS=(galley-train --dry); COMP_CWORD=1; _galley; echo ${COMPREPLY[@]}";
  EXPECT_EQ(elsewhere("source " + completions + "galley-train; " + option).out, "--dry-run\n");
  for (const char* file : {"zsh/site-functions/_galley", "zsh/site-functions/_galley-train", "fish/vendor_completions.d/galley.fish",
                           "fish/vendor_completions.d/galley-train.fish"})
    EXPECT_NE(read_text(prefix() + "/share/" + file).find("--complete-words"), std::string::npos) << file;
}

TEST_F(Install, ZshAndFishCompleteAtOnce) {
  const std::string share = prefix() + "/share/";
  if (shell("command -v fish").code == 0) {
    const std::string fish = "fish -N -c 'source " + share + "fish/vendor_completions.d/";
    EXPECT_EQ(elsewhere(fish + "galley.fish; complete -C \"galley train --dry\"'").out, "--dry-run\n");
    EXPECT_EQ(elsewhere(fish + "galley-train.fish; complete -C \"galley-train --dry\"'").out, "--dry-run\n");
  }
  if (shell("command -v zsh").code != 0) GTEST_SKIP() << "zsh is not installed";
  // The first completion loads the function of the file; compadd is replaced by a command that prints its words.
  const std::string zsh = "zsh -f -c 'fpath=(" + share + "zsh/site-functions $fpath); autoload -U compinit; compinit -u -D; " +
                          "compadd() { print -l -- ${@[$((${@[(i)--]} + 1)),-1]} }; _files() {}; ";
  EXPECT_EQ(elsewhere(zsh + "autoload _galley; words=(galley pr); CURRENT=2; _galley'").out.substr(0, 10), "benchmark\n");
  EXPECT_EQ(elsewhere(zsh + "autoload _galley-train; words=(galley-train --dry); CURRENT=2; _galley-train'").out, "--dry-run\n");
}

}  // namespace
}  // namespace galley::testing_cli
