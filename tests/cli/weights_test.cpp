// galley-weights as a user runs it: ls, show, convert, diff; fetch from a server that is slow, fails, sends wrong data or does not support
// ranges. A file gets its name only when it is complete and correct.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <nettle/sha2.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

const std::string kGolden = GALLEY_SOURCE_DIR "/tests/golden/weights/";

Json json_of(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  words.insert(words.end(), {"--format", "json"});
  const Outcome outcome = run("galley-weights", words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << outcome.out;
  EXPECT_EQ(json["provenance"]["tool"], "galley-weights");
  return json;
}

Outcome weights(const std::vector<std::string>& arguments) { return run("galley-weights", arguments); }

/// A separate folder that contains the user's configuration and cache.
std::string home() {
  const std::string folder = scratch_folder();
  setenv("XDG_CONFIG_HOME", (folder + "/config").c_str(), 1);
  setenv("XDG_CACHE_HOME", (folder + "/cache").c_str(), 1);
  std::filesystem::create_directories(folder + "/config/galley/weights");
  return folder;
}

std::string sha256(const std::string& text) {
  sha256_ctx context;
  sha256_init(&context);
  sha256_update(&context, text.size(), reinterpret_cast<const uint8_t*>(text.data()));
  uint8_t digest[SHA256_DIGEST_SIZE];
  sha256_digest(&context, sizeof digest, digest);
  std::string hex;
  for (const uint8_t byte : digest) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  return hex;
}

/// One file over HTTP on the loopback interface.
class Server {
 public:
  explicit Server(std::string body) : body_(std::move(body)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string url(const std::string& file) const { return "http://127.0.0.1:" + std::to_string(port_) + "/" + file; }

  std::atomic<size_t> cut_after{SIZE_MAX};  ///< Bytes of body after which the connection dies.
  std::atomic<bool> knows_ranges{true};
  std::atomic<int> status{200};
  std::atomic<size_t> sent{0};
  std::atomic<int> requests{0};

 private:
  void serve() {
    for (;;) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      ++requests;
      std::string request;
      char buffer[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t count = read(client, buffer, sizeof buffer);
        if (count <= 0) break;
        request.append(buffer, static_cast<size_t>(count));
      }
      answer(client, request);
      close(client);
    }
  }
  void answer(int client, const std::string& request) {
    size_t from = 0;
    if (const size_t range = request.find("Range: bytes="); range != std::string::npos && knows_ranges)
      from = std::strtoull(request.c_str() + range + 13, nullptr, 10);
    std::string head = "HTTP/1.1 200 OK\r\n";
    if (status != 200) head = "HTTP/1.1 " + std::to_string(status) + " No\r\n";
    if (from > 0 && from >= body_.size()) {
      send_all(client, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */" + std::to_string(body_.size()) +
                           "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
      return;
    }
    if (from > 0)
      head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " + std::to_string(from) + "-" + std::to_string(body_.size() - 1) + "/" +
             std::to_string(body_.size()) + "\r\n";
    head += "Content-Length: " + std::to_string(body_.size() - from) + "\r\nConnection: close\r\n\r\n";
    send_all(client, head);
    const std::string part = body_.substr(from, cut_after);
    sent += part.size();
    send_all(client, part);
  }
  static void send_all(int client, const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t count = send(client, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (count <= 0) return;
      at += static_cast<size_t>(count);
    }
  }

  std::string body_;
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

TEST(Weights, ListsTheZooAndItsWeights) {
  home();
  const Json json = json_of({"ls", "resnet1?"});
  ASSERT_EQ(json["models"].size(), 1u);
  const Json& row = json["models"][0];
  EXPECT_EQ(row["model"], "resnet18");
  EXPECT_EQ(row["weights"], "IMAGENET1K_V1");
  EXPECT_EQ(row["parameters"], 11'689'512);
  // torchvision publishes 1.814 GMACs of convolutions and the linear layer; the graph also counts the other layers.
  EXPECT_NEAR(row["gflops"].get<double>(), 2 * 1.814, 0.05);
  // fvcore counts 2.48 M activations of convolutions; the graph also counts 1000 of the linear layer.
  EXPECT_NEAR(row["activations"].get<double>(), 2.484e6, 0.01e6);
  EXPECT_EQ(row["metrics"]["top1"], 69.758);
  EXPECT_EQ(row["here"], false);
  const Outcome table = weights({"ls", "resnet*"});
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("IMAGENET1K_V2 *"), std::string::npos);
  const Outcome csv = weights({"ls", "vgg11", "--format", "csv"});
  EXPECT_EQ(csv.out.substr(0, csv.out.find('\n')), "model,weights,top1,top5,parameters,GFLOPs,activations M,input,MiB,here");
  const Outcome all = weights({"ls", "--format", "csv"});  // computes the cost of every model
  EXPECT_EQ(all.code, 0) << all.err;
  for (const char* model : {"\nbert,", "\ngpt2,", "\nresnet50,"}) EXPECT_NE(all.out.find(model), std::string::npos) << model;
  const Outcome none = weights({"ls", "resnet5O"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("did you mean 'resnet50'"), std::string::npos) << none.err;
}

TEST(Weights, ShowsFilesAndPublishedSets) {
  home();
  const Json file = json_of({"show", kGolden + "training.pth"});
  EXPECT_EQ(file["files"][0]["format"], "PyTorch zip");
  EXPECT_EQ(file["files"][0]["chosen"], "model");
  EXPECT_EQ(file["tensors"].size(), 7u);
  EXPECT_EQ(file["tensors"][0]["name"], "conv.weight");
  EXPECT_EQ(file["tensors"][0]["shape"], Json({3, 2, 1, 1}));
  EXPECT_EQ(json_of({"show", kGolden + "training.pth", "--all"})["others"].size(), 4u);
  const Json published = json_of({"show", "resnet50/IMAGENET1K_V2"})["published"];
  EXPECT_EQ(published["num_params"], 25'557'032);
  EXPECT_EQ(published["fetched"], false);
  EXPECT_EQ(published["metrics"]["top5"], 95.434);
  EXPECT_NE(published["pipeline"].get<std::string>().find("size: 232"), std::string::npos);
  EXPECT_NE(weights({"show", kGolden + "protocol2.pth"}).out.find("bf16"), std::string::npos);
  const Outcome refused = weights({"show", kGolden + "refused_model.pth", "--format", "json"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(Json::parse(refused.err)["error"]["message"].get<std::string>().find("torch.nn.modules.container.Sequential"),
            std::string::npos);
}

TEST(Weights, ConvertsAndComparesToTheSameValues) {
  const std::string folder = home();
  const std::string out = folder + "/out.safetensors";
  EXPECT_EQ(json_of({"convert", kGolden + "training.pth", "-o", out})["tensors"], 7);
  EXPECT_EQ(json_of({"diff", kGolden + "training.pth", out})["equal"], true);
  const Json shown = json_of({"show", out});
  EXPECT_EQ(shown["files"][0]["format"], "safetensors");
  EXPECT_EQ(Json::parse(shown["metadata"]["galley.parents"].get<std::string>())[0]["file"], kGolden + "training.pth");
  EXPECT_EQ(json_of({"verify", out})["files"][0]["complete"], true);

  // For names that differ by a prefix, the tool proposes rules that match them.
  const Json apart = json_of({"diff", out, kGolden + "nested.pth"});
  EXPECT_EQ(apart["equal"], false);
  EXPECT_EQ(apart["rename"], (Json{{"module.", ""}}));
  const Json aligned = json_of({"diff", out, kGolden + "nested.pth", "--rename", "module.="});
  EXPECT_EQ(aligned["equal"], true);
  const Outcome table = weights({"diff", out, kGolden + "nested.pth"});
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.err.find("\"module.\": \"\""), std::string::npos) << table.err;

  EXPECT_EQ(weights({"convert", kGolden + "nested.pth", "-o", folder + "/half", "--rename", "module.=", "--dtype", "bf16"}).code, 0);
  const Json half = json_of({"diff", out, folder + "/half"});
  EXPECT_EQ(half["equal"], false);
  for (const Json& tensor : half["tensors"]) {
    if (tensor["name"] == "conv.weight") {
      EXPECT_EQ(tensor["verdict"], "differs");
      EXPECT_GT(tensor["sqnr_db"].get<double>(), 40) << "bf16 keeps 8 bits";
    }
  }
  EXPECT_EQ(weights({"convert", kGolden + "types.pth", "-o", folder + "/x"}).code, 4) << "complex numbers are not dropped in silence";
  EXPECT_EQ(weights({"convert", kGolden + "types.pth", "-o", folder + "/x", "--ignore", "c", "--ignore", "u", "--ignore", "f8"}).code, 0);
  EXPECT_EQ(weights({"convert", kGolden + "types.pth"}).code, 2);
}

TEST(Weights, VerifySaysWhatAFormatCanTell) {
  const std::string folder = home();
  EXPECT_EQ(json_of({"verify", kGolden + "protocol2.pth"})["files"][0]["complete"], true);
  const Json legacy = json_of({"verify", kGolden + "legacy.pth"})["files"][0];
  EXPECT_EQ(legacy["complete"], false);
  EXPECT_EQ(legacy["checked_bytes"], 0);
  EXPECT_NE(weights({"verify", kGolden + "no_checksums.pth"}).out.find("cannot tell: it was saved without checksums"), std::string::npos);
  EXPECT_EQ(weights({"verify", "--strict", kGolden + "legacy.pth"}).code, 4);
  std::string damaged = read_text(kGolden + "protocol2.pth");
  const size_t place = damaged.find("FBZ") == std::string::npos ? damaged.find("/data/0") : 0;
  damaged[place + 40] = static_cast<char>(damaged[place + 40] ^ 1);
  write_text(folder + "/damaged.pth", damaged);
  const Outcome outcome = weights({"verify", folder + "/damaged.pth"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_EQ(outcome.out, "");
}

TEST(Weights, AveragesInFloat64) {
  const std::string folder = home();
  const std::string out = folder + "/mean.safetensors";
  EXPECT_EQ(json_of({"average", kGolden + "protocol2.pth", kGolden + "legacy.pth", "-o", out})["averaged"], 2);
  EXPECT_EQ(json_of({"diff", kGolden + "protocol2.pth", out})["equal"], true) << "the mean of two equal files";
  EXPECT_EQ(weights({"average", kGolden + "protocol2.pth", kGolden + "shared.pth", "-o", out}).code, 4);
  EXPECT_EQ(weights({"average", kGolden + "protocol2.pth", "-o", out}).code, 2);
}

/// A registry entry of the user for a file on the server.
std::string publish(const std::string& folder, const std::string& url, const std::string& hash) {
  write_text(folder + "/config/galley/weights/tiny.yaml",
             "model: tiny\ndefault: V1\nentries: [{name: V1, url: \"" + url + "\", sha256: \"" + hash + "\"}]\n");
  return folder + "/cache/galley/weights/" + url.substr(url.rfind('/') + 1);
}

TEST(Fetch, WholeResumedAndVerified) {
  const std::string body = read_text(kGolden + "protocol2.pth"), hash = sha256(body);
  {
    const std::string folder = home();
    Server server(body);
    const std::string file = publish(folder, server.url("tiny.pth"), hash.substr(0, 8));
    EXPECT_EQ(json_of({"fetch", "tiny", "--dry-run"})["files"][0]["result"], "would be fetched");
    EXPECT_EQ(server.requests, 0);
    EXPECT_EQ(json_of({"fetch", "tiny"})["files"][0]["result"], "fetched");
    EXPECT_EQ(read_text(file), body);
    EXPECT_FALSE(std::filesystem::exists(file + ".part"));
    EXPECT_EQ(json_of({"fetch", "tiny/V1"})["files"][0]["result"], "here already");
    EXPECT_EQ(server.requests, 1) << "an existing file is not requested";
    EXPECT_EQ(json_of({"show", "tiny/V1"})["tensors"].size(), 12u);
    EXPECT_EQ(json_of({"verify", "tiny/V1"})["files"][0]["complete"], true);
    write_text(file, body + "x");
    EXPECT_EQ(weights({"fetch", "tiny"}).code, 4) << "a file here that is not the published one";
  }
  for (const bool ranges : {true, false}) {
    SCOPED_TRACE(ranges);
    const std::string folder = home();
    Server server(body);
    const std::string file = publish(folder, server.url("tiny.pth"), hash);
    server.cut_after = 1000;
    server.knows_ranges = ranges;
    const Outcome cut = weights({"fetch", "tiny"});
    EXPECT_EQ(cut.code, 7);
    EXPECT_NE(cut.err.find("1000 bytes are kept"), std::string::npos) << cut.err;
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_EQ(std::filesystem::file_size(file + ".part"), 1000u);
    server.cut_after = SIZE_MAX;
    EXPECT_EQ(json_of({"fetch", "tiny"})["files"][0]["result"], ranges ? "fetched (resumed)" : "fetched");
    EXPECT_EQ(read_text(file), body);
    if (ranges) {
      EXPECT_EQ(server.sent, body.size()) << "what was here is not sent again";
    }
  }
  {  // Killed after the last byte and before the name: the part is complete.
    const std::string folder = home();
    Server server(body);
    const std::string file = publish(folder, server.url("tiny.pth"), hash);
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    write_text(file + ".part", body);
    EXPECT_EQ(weights({"fetch", "tiny"}).code, 0);
    EXPECT_EQ(read_text(file), body);
    EXPECT_EQ(server.sent, 0u);
    // A partial file that is longer than the file belongs to something else.
    std::filesystem::remove(file);
    write_text(file + ".part", body + body);
    EXPECT_EQ(weights({"fetch", "tiny"}).code, 0);
    EXPECT_EQ(read_text(file), body);
  }
}

TEST(Fetch, RefusesAndExplains) {
  const std::string body = read_text(kGolden + "protocol2.pth"), hash = sha256(body);
  const std::string folder = home();
  std::string file;
  {
    Server server(body.substr(0, 3000) + "X" + body.substr(3001));
    file = publish(folder, server.url("tiny.pth"), hash.substr(0, 8));
    const Outcome wrong = weights({"fetch", "tiny"});
    EXPECT_EQ(wrong.code, 4);
    EXPECT_NE(wrong.err.find("must be " + hash.substr(0, 8)), std::string::npos) << wrong.err;
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_FALSE(std::filesystem::exists(file + ".part")) << "a wrong part would be continued for ever";
    server.status = 404;
    EXPECT_EQ(weights({"fetch", "tiny"}).code, 7);
    EXPECT_FALSE(std::filesystem::exists(file));
  }
  // Offline: the server no longer listens.
  const Outcome offline = weights({"fetch", "tiny", "--format", "json"});
  EXPECT_EQ(offline.code, 7);
  EXPECT_EQ(offline.out, "");
  const std::string remedy = Json::parse(offline.err.substr(offline.err.find("{\"error\"")))["error"]["suggestion"];
  EXPECT_NE(remedy.find("copy it to " + file), std::string::npos) << remedy;
  EXPECT_EQ(weights({"fetch", "tiny/V2"}).code, 3);
  EXPECT_EQ(weights({"fetch"}).code, 2);
  const Outcome show = weights({"verify", "tiny/V1"});
  EXPECT_EQ(show.code, 4);
  EXPECT_NE(show.err.find("galley-weights fetch tiny/V1"), std::string::npos) << show.err;
  // A redirection to a local file is not followed.
  publish(folder, "gopher://127.0.0.1/x", hash);
  EXPECT_EQ(weights({"fetch", "tiny"}).code, 7);
  // A file that the user puts there is used.
  publish(folder, "http://127.0.0.1:9/tiny.pth", hash);
  write_text(file, body);
  EXPECT_EQ(weights({"fetch", "tiny"}).code, 0);
  EXPECT_EQ(weights({"show", "tiny/V1"}).code, 0);
}

TEST(Fetch, FromAFileUrl) {
  const std::string folder = home();
  const std::string body = read_text(kGolden + "legacy.pth");
  write_text(folder + "/source.pth", body);
  const std::string file = publish(folder, "file://" + folder + "/source.pth", sha256(body));
  EXPECT_EQ(weights({"fetch", "tiny"}).code, 0);
  EXPECT_EQ(read_text(file), body);
}

TEST(Fetch, KilledWhileFetchingLeavesNoFile) {
  const std::string folder = home();
  Server server(std::string(64 << 20, 'x'));
  const std::string file = publish(folder, server.url("tiny.pth"), "00000000");
  for (int delay_ms : {2, 10, 30}) {
    Child child("galley-weights", {"fetch", "tiny"});
    usleep(static_cast<useconds_t>(delay_ms) * 1000);
    child.signal(SIGKILL);
    child.wait();
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST(Weights, RecipesNamePublishedWeights) {
  const std::string folder = home();
  // A model and its weights in a registry of the user.
  write_text(folder + "/mlp.yaml",
             "recipe: 1\nname: a\nmodel: {type: mlp, num_classes: 4}\ndata:\n  train: {source: {type: synthetic, samples: 8}, workers: 1}\n"
             "  val: {source: {type: synthetic, samples: 8}, batch: 4}\ntrain: {duration: 2 steps, batch: 4, optimizer: {type: sgd, lr: "
             "0.1}}\ncheckpoint: null\n");
  ASSERT_EQ(run("galley-train", {folder + "/mlp.yaml", "-o", folder + "/run", "-q"}).code, 0);
  write_text(folder + "/config/galley/weights/mlp.yaml",
             "model: mlp\ndefault: MINE\nentries:\n  - {name: MINE, path: " + folder +
                 "/run/weights.safetensors}\n  - {name: OTHER, url: \"http://127.0.0.1:9/other-00000000.pth\"}\n");
  const auto loss = [&](const std::string& weights) {
    const Outcome outcome = run("galley-evaluate", {folder + "/mlp.yaml", "weights=" + weights, "--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out)["metrics"]["loss"].get<double>() : -1;
  };
  const double by_path = loss(folder + "/run/weights.safetensors");
  EXPECT_EQ(loss("mlp/MINE"), by_path);
  EXPECT_EQ(loss("default"), by_path);
  const Outcome missing = run("galley-evaluate", {folder + "/mlp.yaml", "weights=mlp/OTHER"});
  EXPECT_EQ(missing.code, 4);
  EXPECT_NE(missing.err.find("galley-weights fetch mlp/OTHER"), std::string::npos) << missing.err;
  EXPECT_EQ(run("galley-evaluate", {folder + "/mlp.yaml", "weights=mlp/MINNE"}).code, 3);
}

TEST(Weights, UsageAndCompletion) {
  home();
  EXPECT_EQ(weights({}).code, 2);
  EXPECT_EQ(weights({"lss"}).code, 2);
  EXPECT_EQ(weights({"--help"}).code, 0);
  EXPECT_EQ(weights({"--complete-words", "fe"}).out, "fetch\n");
  EXPECT_EQ(weights({"--complete-words", "fetch", "resnet50/"}).out, "resnet50/IMAGENET1K_V1\nresnet50/IMAGENET1K_V2\n");
  EXPECT_EQ(weights({"--complete-words", "ls", "resnet50"}).out, "resnet50\n");
}

}  // namespace
}  // namespace galley::testing_cli
