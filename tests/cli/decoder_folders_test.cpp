// Laws: a hub folder of a decoder, as transformers saves it, gives the logits of transformers and generates what transformers generates
// (tests/golden/hub, made by make_decoder_folders.py), alone and in a batch of unequal prompts, until one of its end tokens; its chat
// template makes the text of transformers; what a folder lacks or contradicts is one error with its exit code.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string golden(const std::string& name) { return std::string(GALLEY_SOURCE_DIR "/tests/golden/hub/") + name; }
const Json& expected() {
  static const Json all = Json::parse(read_text(golden("decoders.json")));
  return all;
}

class DecoderFolders : public testing::TestWithParam<std::string> {
 protected:
  /// A copy of a folder, with the tokenizer.
  std::string folder(const std::string& name) const {
    const std::string to = scratch_ + "/" + name;
    fs::copy(golden(name), to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::copy(golden("tokenizer"), to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    return to;
  }
  const std::string scratch_ = scratch_folder();
  static std::vector<Json> lines(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<Json> all;
    std::istringstream text(outcome.out);
    for (std::string line; std::getline(text, line);) all.push_back(Json::parse(line));
    return all;
  }
};

TEST_P(DecoderFolders, GenerateWhatTransformersGenerates) {
  const Json& want = expected()["folders"][GetParam()];
  const std::string model = folder(GetParam()), count = std::to_string(expected()["new_tokens"].get<int>());
  std::string prompts;
  for (const std::string prompt : expected()["prompts"]) prompts += prompt + "\n";
  write_text(scratch_ + "/prompts.txt", prompts);
  for (const std::string batch : {"1", "3"}) {
    SCOPED_TRACE("batch " + batch);
    const std::vector<Json> got = lines(run("galley-predict", {model, "--prompts", scratch_ + "/prompts.txt", "--batch", batch, "--format",
                                                               "json", "generate.max_new_tokens=" + count}));
    ASSERT_EQ(got.size(), want["results"].size());
    bool ended = false;
    for (size_t i = 0; i < got.size(); ++i) {
      std::vector<int> tokens = want["results"][i]["new"];
      const std::vector<int> ends = want["end_tokens"];
      const auto end = std::find_first_of(tokens.begin(), tokens.end(), ends.begin(), ends.end());
      const bool ends_here = end != tokens.end();
      if (ends_here) tokens.erase(end + 1, tokens.end());
      EXPECT_EQ(got[i]["tokens"].get<std::vector<int>>(), tokens);
      EXPECT_EQ(got[i]["stopped"], ends_here ? "end" : "length");
      ended = ended || ends_here;
    }
    EXPECT_TRUE(ended);
  }
}

/// A safetensors file with one array of i64 and one row.
std::string ids_file(const std::string& name, const std::vector<int64_t>& ids) {
  const size_t bytes = ids.size() * sizeof(int64_t);
  const std::string header = "{\"" + name + "\":{\"dtype\":\"I64\",\"shape\":[1," + std::to_string(ids.size()) + "],\"data_offsets\":[0," +
                             std::to_string(bytes) + "]}}";
  return safetensors_of(header, std::string(reinterpret_cast<const char*>(ids.data()), bytes));
}

// By the hub's names of input and output, or Galley's of the input.
TEST_P(DecoderFolders, ComputeTheLogitsOfTransformers) {
  const std::string model = folder(GetParam());
  const std::vector<double> want = expected()["folders"][GetParam()]["logits"];
  for (const std::string name : {"input_ids", "input"}) {
    write_text(scratch_ + "/ids.safetensors", ids_file(name, expected()["ids"]));
    const Outcome outcome = run("galley-predict", {model, "--tensors", scratch_ + "/ids.safetensors", "-o", scratch_ + "/out.safetensors"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string bytes = tensor_bytes(scratch_ + "/out.safetensors", "logits");
    std::vector<float> got(bytes.size() / sizeof(float));
    std::memcpy(got.data(), bytes.data(), bytes.size());
    ASSERT_EQ(got.size(), expected()["ids"].size() * want.size());
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    // Sums of f32 through two blocks; the largest logits are about 3.
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[got.size() - want.size() + i], want[i], 2e-5 * largest) << "logit " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DecoderFolders, testing::Values("gpt2", "gpt_neo", "llama", "mistral", "qwen2", "qwen3", "phi3"),
                         [](const auto& info) { return info.param; });

using Chat = DecoderFolders;

TEST_F(Chat, TheTemplateMakesThePrompt) {
  const std::string model = folder("qwen2");
  const std::vector<Json> shown = lines(run("galley-predict", {model, "--chat", "Hello there", "--show-prompt", "--format", "json"}));
  ASSERT_EQ(shown.size(), 1u);
  EXPECT_EQ(shown[0]["text"], expected()["chat"]);
  EXPECT_EQ(shown[0]["ids"].front(), 1) << "<|user|>, and nothing before it";
  // A conversation: the second prompt holds the first answer.
  const std::vector<Json> turns =
      lines(run("galley-predict", {model, "--interactive", "--format", "json", "generate.max_new_tokens=6"}, "a\n\nb\n"));
  ASSERT_EQ(turns.size(), 2u);
  std::string second = expected()["chat_turns"];
  second.replace(second.find("ANSWER"), 6, turns[0]["text"].get<std::string>());
  EXPECT_EQ(turns[1]["prompt"], second);
  // As text, the answer alone.
  const Outcome text = run("galley-predict", {model, "--chat", "a", "generate.max_new_tokens=6"});
  EXPECT_EQ(text.out, turns[0]["text"].get<std::string>() + "\n") << text.err;
  // A template beside the folder.
  write_text(scratch_ + "/other.jinja", "{{ messages[0].content }}!");
  const std::vector<Json> other = lines(run("galley-predict", {model, "--chat", "Hi", "--show-prompt", "--format", "json",
                                                               "predict.chat_template=" + scratch_ + "/other.jinja"}));
  EXPECT_EQ(other.at(0)["text"], "Hi!");
}

// The system message begins each conversation, also an interactive one.
TEST_F(Chat, ASystemMessageComesFirst) {
  const std::string model = folder("qwen2");
  write_text(scratch_ + "/roles.jinja", "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}");
  const std::vector<std::string> shown{"--show-prompt", "--format", "json", "predict.chat_template=" + scratch_ + "/roles.jinja"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), model);
    arguments.insert(arguments.end(), shown.begin(), shown.end());
    return arguments;
  };
  const std::vector<Json> alone = lines(run("galley-predict", with({"--chat", "a", "--chat", "b", "--system", "Be short."})));
  ASSERT_EQ(alone.size(), 2u);
  EXPECT_EQ(alone[0]["text"], "[system: Be short.][user: a]");
  EXPECT_EQ(alone[1]["text"], "[system: Be short.][user: b]");
  const std::vector<Json> turns = lines(run("galley-predict", with({"--interactive", "--system", "Be short."}), "a\nb\n"));
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[1]["text"], "[system: Be short.][user: b]");
  // Special tokens of older folders.
  write_text(scratch_ + "/special_tokens_map.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>"})");
  write_text(scratch_ + "/roles.jinja", "{{ bos_token }}{{ eos_token }}");
  EXPECT_EQ(lines(run("galley-predict", with({"--chat", "a"}))).at(0)["text"], "<b><e>");
  const Outcome none = run("galley-predict", with({"--prompt", "a", "--system", "Be short."}));
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("--system needs a conversation"), std::string::npos) << none.err;
}

// A conversation that is longer than the context goes on without its oldest turns, and says so once.
TEST_F(Chat, ALongConversationGoesOn) {
  const std::string model = folder("qwen2");
  write_text(scratch_ + "/roles.jinja", "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}");
  const Outcome outcome = run("galley-predict",
                              {model, "--interactive", "--system", "Be short.", "--format", "json", "generate.max_new_tokens=4",
                               "threads=1", "predict.chat_template=" + scratch_ + "/roles.jinja"},
                              "one\ntwo\nthree\nfour\n" + std::string(300, 'q') + "\nfive\n");
  const std::vector<Json> turns = lines(outcome);
  ASSERT_EQ(turns.size(), 5u) << outcome.err;
  EXPECT_EQ(turns[0]["prompt"], "[system: Be short.][user: one]");
  for (const Json& turn : turns) EXPECT_TRUE(turn["prompt"].get<std::string>().starts_with("[system: Be short.][user: ")) << turn;
  EXPECT_EQ(turns[4]["prompt"].get<std::string>().find("[user: one]"), std::string::npos);
  EXPECT_TRUE(turns[4]["prompt"].get<std::string>().ends_with("[user: five]"));
  const std::string notice = "no longer reads its oldest turns";
  const size_t first = outcome.err.find(notice);
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(notice, first + 1), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("the model reads at most 64; shorten the prompt"), std::string::npos) << outcome.err;
}

// int8 and bf16 take a quarter and half of the memory of f32, but for the scales; a window bounds it. What is generated is as long.
TEST_F(Chat, TheCacheHasTheSizeThatDryRunPrints) {
  const std::string model = folder("mistral");
  const auto cache_of = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> arguments{model, "--prompt", "Hello", "--dry-run"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const Outcome outcome = run("galley-predict", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::string key = "key-value cache ";
    const size_t at = outcome.out.find(key);
    EXPECT_NE(at, std::string::npos) << outcome.out;
    return at == std::string::npos ? "" : outcome.out.substr(at + key.size(), outcome.out.find(')', at) + 1 - at - key.size());
  };
  // 2 layers of 64 tokens, keys and values of 2 heads of 6 values; int8 has a scale of 4 bytes for each head.
  const std::string wide = "model.sliding_window=null";
  EXPECT_EQ(cache_of({wide}), "12 KiB (f32, 1 sequence of 64 tokens)");
  EXPECT_EQ(cache_of({wide, "predict.generate.cache=bf16"}), "6 KiB (bf16, 1 sequence of 64 tokens)");
  EXPECT_EQ(cache_of({wide, "predict.generate.cache=int8"}), "5 KiB (int8, 1 sequence of 64 tokens)");
  EXPECT_EQ(cache_of({"model.sliding_window=8"}), "1.5 KiB (f32, 1 sequence of 64 tokens)");
  EXPECT_EQ(cache_of({wide, "predict.generate.beams=3"}), "36 KiB (f32, 3 sequences of 64 tokens)");
  for (const std::string cache : {"bf16", "int8"}) {
    const std::vector<Json> got =
        lines(run("galley-predict", {model, "--prompt", "Hello", "--format", "json", "predict.generate.cache=" + cache,
                                     "generate.max_new_tokens=9", "predict.generate.end_tokens=[]"}));
    EXPECT_EQ(got.at(0)["tokens"].size(), 9u);
  }
  const Outcome unknown = run("galley-predict", {model, "--prompt", "Hello", "predict.generate.cache=int4"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_NE(unknown.err.find("one of: f32, bf16, int8"), std::string::npos) << unknown.err;
}

TEST_F(Chat, MistakesHaveTheirExitCodes) {
  const std::string model = folder("llama");
  const auto fails = [&](const std::vector<std::string>& more, int code, const std::string& part) {
    std::vector<std::string> arguments{model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run("galley-predict", arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err << "\nlacks: " << part;
  };
  write_text(model + "/chat_template.jinja", "{{ bos_token }}\n{% include 'x' %}");
  fails({"--chat", "a"}, 4, "chat_template.jinja:2: error: the statement 'include' is not supported");
  write_text(model + "/chat_template.jinja", "a\n{{ 'b' | rot13 }}");
  fails({"--chat", "a"}, 4, "chat_template.jinja:2: error: the filter 'rot13' is not supported; known: abs, ");
  fails({"--chat", "a"}, 4, "predict.chat_template=FILE.jinja takes another template");
  write_text(model + "/chat_template.jinja", "a\n\xff");
  fails({"--chat", "a"}, 4, "chat_template.jinja:2:1: error: the template is not UTF-8");
  write_text(model + "/chat_template.jinja", "{{ raise_exception('no') }}");
  fails({"--chat", "a"}, 4, "chat_template.jinja:1: error: the template refuses the conversation: no");
  fs::remove(model + "/chat_template.jinja");
  write_text(model + "/tokenizer_config.json", "{}");
  fails({"--chat", "a"}, 3, "the model has no chat template");
  write_text(model + "/tokenizer_config.json", R"({"chat_template": "a\n{% include 'x' %}"})");
  fails({"--chat", "a"}, 4, "tokenizer_config.json: error: chat_template, line 2: the statement 'include' is not supported");
  write_text(model + "/tokenizer_config.json", "{\n\"a\": ");
  fails({"--chat", "a"}, 4, "tokenizer_config.json:2:");
  write_text(model + "/tokenizer_config.json", "{}");
  fails({"--prompt", std::string(300, 'q')}, 2, "but the model reads at most 64");
  fails({"--prompt", "a", "--prompt", std::string(300, 'q'), "--batch", "1"}, 2, "but the model reads at most 64");
  fails({"--prompt", ""}, 2, "the prompt is empty");
  fails({"--detokenize", ""}, 2, "--detokenize: '' is not an id");
  fails({"--prompt", "a", "generate.beams=3", "generate.temperature=0.5"}, 3, "generate.temperature=0");
  fails({"--prompt", "a", "weights=null"}, 3, "leave out weights=null");
  write_text(scratch_ + "/prompts.txt", "a\n\n" + std::string(300, 'q') + "\n");
  fails({"--prompts", scratch_ + "/prompts.txt"}, 2, "prompts.txt:3: error: the prompt has ");
  const std::string config = read_text(model + "/config.json");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    text.replace(text.find(from), from.size(), to);
    write_text(model + "/config.json", text);
  };
  changed("\"vocab_size\": 304", "\"vocab_size\": 200");
  fails({"--prompt", "a"}, 3, "llama has 300 tokens");
  changed("\"vocab_size\": 304", "\"vocab_size\": 400");
  fails({"--prompt", "a"}, 4,
        "config.json says vocab_size 400, the weights have 304; take config.json and the weights from the same model");
  changed("\"hidden_size\": 16", "\"hidden_size\": 2000000000");
  fails({"--prompt", "a"}, 4, "hidden_size: is 2000000000, but the weights have 16 (model.embed_tokens.weight in ");
  changed("\"head_dim\": 4", "\"head_dim\": 8");
  fails({"--prompt", "a"}, 4, "the sizes in config.json, or in the recipe, are not those of the weights");
  changed("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  fails({"--prompt", "a"}, 4, "the weights have fewer layers or parts than config.json says");
  for (const auto& [from, to, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"\"factor\": 8.0", "\"factor\": -1", "'model.rope_parameters.factor' is -1"},
           {"1e-06", "-1", "'model.rms_norm_eps' is -1"},
           {"\"head_dim\": 4", "\"head_dim\": 7", "rotate an even number"}}) {
    changed(from, to);
    fails({"--prompt", "a"}, 4, says);
    fails({"--prompt", "a"}, 4, "llama/config.json: error: ");
  }
  changed("\"rope_type\": \"llama3\"", "\"rope_type\": \"spiral\"");
  fails({"--prompt", "a"}, 4, "rope_type is spiral");
  changed("\"hidden_size\": 16", "\"hidden_size\": 20");
  fails({"--prompt", "a"}, 4, "model.embed_tokens.weight");
}

TEST_F(Chat, TensorsMustBeTokensOfTheModel) {
  const std::string model = folder("llama"), file = scratch_ + "/in.safetensors";
  const auto fails = [&](const std::string& header, const std::vector<int64_t>& values, const std::string& part) {
    const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
    write_text(file, safetensors_of(header, bytes));
    const Outcome outcome = run("galley-predict", {model, "threads=1", "--tensors", file, "-o", scratch_ + "/out.safetensors"});
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_NE(outcome.err.find("in.safetensors"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err << "\nlacks: " << part;
  };
  fails(R"({"ids":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]}})", {1, 2}, "no tensor 'input_ids'");
  fails(R"({"input_ids":{"dtype":"I64","shape":[2,2],"data_offsets":[0,32]}})", {1, 2, 3, 304},
        "the tensor 'input_ids' has the id 304 at [1,1]; the vocabulary ends at 303");
  fails(R"({"input_ids":{"dtype":"F64","shape":[1,2],"data_offsets":[0,16]}})", {1, 2}, "not integers");
  fails(R"({"input_ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})", {1, 2}, "not [N,T]");
  fails(R"({"input_ids":{"dtype":"I64","shape":[1,0],"data_offsets":[0,0]}})", {}, "has no tokens");
  fails(R"({"input_ids":{"dtype":"I64","shape":[1,65],"data_offsets":[0,520]}})", std::vector<int64_t>(65, 1), "reads at most 64");
  const std::string mask = R"("attention_mask":{"dtype":"I64","shape":[1,1],"data_offsets":[8,16]}})";
  fails(R"({"input_ids":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]},)" + mask, {1, 1},
        "the model does not read attention_mask; it reads input_ids");
}

TEST_F(Chat, QuantizationMeasuresTheRateOfTokens) {
  write_text(scratch_ + "/text.txt", std::string(400, 'q'));
  const Outcome outcome = run("galley-quantize", {folder("llama"), "method=weight_only", "data.val.source=text", "threads=1",
                                                  "data.val.source.path=" + scratch_ + "/text.txt", "--evaluate", "--format", "json", "-o",
                                                  scratch_ + "/q.safetensors"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = Json::parse(outcome.out);
  EXPECT_GT(report["tokens_per_s"]["float"].get<double>(), 0);
  EXPECT_GT(report["tokens_per_s"]["quantized"].get<double>(), 0);
  EXPECT_TRUE(report["metrics"]["quantized"].contains("perplexity"));
}

/// Finite weights whose logits are not.
TEST_F(Chat, LogitsThatAreNotFiniteEndTheGeneration) {
  const std::string model = folder("gpt2");
  std::string file = read_text(model + "/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  const Json place = Json::parse(file.substr(sizeof(header), header))["transformer.ln_f.weight"]["data_offsets"];
  const float large = 3e38F;
  for (size_t at = place[0]; at < place[1].get<size_t>(); at += sizeof(large))
    std::memcpy(file.data() + sizeof(header) + header + at, &large, sizeof(large));
  write_text(model + "/model.safetensors", file);
  for (const std::string option : {"temperature=0", "temperature=1", "beams=3"}) {
    const Outcome outcome = run("galley-predict", {model, "threads=1", "generate." + option, "--prompt", "a"});
    EXPECT_EQ(outcome.code, 5) << option << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << option;
    EXPECT_NE(outcome.err.find("prompt 1, token 2: the logit of the id "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("galley-weights verify"), std::string::npos) << outcome.err;
  }
}

/// The error of a text that has begun starts on a line of its own.
TEST_F(Chat, AnErrorWhileStreamingStartsALine) {
  const std::string model = folder("gpt2");
  std::string file = read_text(model + "/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  const Json entry = Json::parse(file.substr(sizeof(header), header))["transformer.wpe.weight"];
  const size_t row = entry["shape"][1].get<size_t>() * sizeof(float);
  const std::string large(row, '\x7f');                                                                  // 3.4e38
  file.replace(sizeof(header) + header + entry["data_offsets"][0].get<size_t>() + 6 * row, row, large);  // of the seventh token
  write_text(model + "/model.safetensors", file);
  const Outcome outcome =
      run("galley-predict", {model, "threads=1", "generate.max_new_tokens=20", "generate.end_tokens=[]", "--prompt", "a"});
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  ASSERT_TRUE(outcome.out.starts_with("a")) << outcome.out << outcome.err;
  EXPECT_TRUE(outcome.out.ends_with("\n"));
}

TEST_F(Chat, CtrlCEndsTheGeneration) {
  const Outcome outcome = shell("cd " + scratch_ + "; galley-predict " + folder("gpt2") +
                                " -q threads=1 generate.max_new_tokens=1000000000 'generate.end_tokens=[]' --prompt a > text &\n"
                                "for i in $(seq 400); do [ -s text ] && break; sleep 0.05; done; kill -INT $!; wait $!");
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(read_text(scratch_ + "/text").front(), 'a');
}

}  // namespace
}  // namespace galley::testing_cli
