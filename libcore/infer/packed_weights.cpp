#include "libcore/infer/packed_weights.h"

#include <sys/stat.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/runtime/program.h"
#include "libcore/weights/load.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

/// Changes where a kernel's packed form changes without another name or format.
constexpr int64_t kVersion = 1;
constexpr char kMagic[16] = "galley packed 1";
constexpr int64_t kAlignment = 4096;  // of arrays: pages

/// At the start of the file; the list of arrays follows as JSON, then the arrays.
struct Header {
  char magic[16];
  char digest[kDigestDigits];  // of the list
  int64_t list_bytes;
};
static_assert(sizeof(Header) == 56);

int64_t aligned(int64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

/// Size and time of the last change, in nanoseconds; zeros if it cannot be read.
std::pair<int64_t, int64_t> state_of(const std::string& path) {
  struct stat state{};
  if (stat(path.c_str(), &state) != 0) return {0, 0};
  return {state.st_size, int64_t{state.st_mtim.tv_sec} * 1'000'000'000 + state.st_mtim.tv_nsec};
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()), static_cast<size_t>(tensor.bytes())};
}

/// What determines the results of `prepare`: its nodes, their kernels and types, and the places of results.
std::string prepare_key(const Program& program) {
  std::string text = cat(program.threads(), " threads, ", program.prepared_bytes(), " bytes");
  for (size_t s = 0; s < program.prepare_steps(); ++s) {
    const Step& step = program.steps()[s];
    const Node& node = program.graph().nodes()[static_cast<size_t>(step.node)];
    text += cat("\n", node.op->name, " ", print_attributes(*node.op, node.attributes.get()), " by ", step.backend, ":");
    for (const std::vector<ValueId>* list : {&node.inputs, &node.outputs}) {
      for (const ValueId id : *list) {
        if (id == kNoValue) continue;
        const MemorySlot& place = program.memory().values[static_cast<size_t>(id)];
        text += cat(" ", program.graph().value(id).name, " ", program.graph().type(id), " at ", place.offset);
      }
    }
  }
  return digest_of(text);
}

}  // namespace

PackedWeights::PackedWeights(std::string path, std::string key, std::string from)
    : path_(std::move(path)), key_(std::move(key)), from_(std::move(from)) {}
PackedWeights::~PackedWeights() = default;

std::unique_ptr<PackedWeights> PackedWeights::open(const Session& session, const Engine& engine) {
  const Recipe& recipe = session.recipe();
  const PackedFile wanted = recipe.weights.packed;
  if (wanted == PackedFile::kNone || recipe.weights.load.size() != 1) return nullptr;
  const auto refuse = [&](const std::string& why) -> std::unique_ptr<PackedWeights> {
    if (wanted == PackedFile::kWrite) throw Error(ErrorCode::kRecipe, why).key("weights.packed").suggest("weights.packed=none");
    return nullptr;
  };
  if (!engine.backend().device().is_host()) return refuse("a second file of weights is mapped, which only the device cpu can read");
  if (recipe.lora) return refuse("a second file holds weights without adapters (galley-weights merge-lora merges them)");
  const auto& source = recipe.weights.load.at<WeightSource>(0);
  const std::string& from = source.path();
  const std::string path = is_folder(from) ? cat(from, "/galley.packed") : cat(from, ".packed");
  if (wanted == PackedFile::kAuto && !file_exists(path)) return nullptr;
  std::string key =
      cat("version ", kVersion, " seed ", recipe.seed, " into ", source.into, source.strict ? " strict" : "", source.cast ? " cast" : "");
  for (const std::string& name : source.ignore) key += cat(" ignore ", name);
  for (const auto& [was, is] : source.rename) key += cat(" rename ", was, " ", is);
  std::unique_ptr<PackedWeights> packed(new PackedWeights(path, digest_of(key), from));
  packed->read();
  return packed;
}

/// Forgets the file, which is then made again.
void PackedWeights::refuse(const std::string& reason) {
  log(LogLevel::kWarning, cat(path_, " ", reason, "; it is made again"));
  file_ = nullptr;
  arrays_.clear();
  prepared_.clear();
  outdated_ = true;
}

/// Whether the weights are those that the file was made from. Files of the same size and time are not read.
bool PackedWeights::is_current(std::vector<Source>& stored) const {
  bool same = true;
  std::vector<std::string> files = weights_files(from_);
  if (files.size() != stored.size()) return false;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto [bytes, time] = state_of(files[i]);
    same = same && stored[i].bytes == bytes && stored[i].time == time;
  }
  if (same) return true;
  const std::vector<WeightsParent> parents = weights_parents(from_);
  for (size_t i = 0; i < parents.size(); ++i) {
    if (parents[i].digest != stored[i].digest) return false;
  }
  return true;
}

void PackedWeights::read() {
  if (!file_exists(path_)) {
    outdated_ = true;
    return;
  }
  const auto file = MappedFile::open(path_);
  const std::span<const std::byte> bytes = file->bytes();
  Header header{};
  if (bytes.size() < sizeof header) return refuse("is damaged");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return refuse("is not a file of packed weights of this version");
  const auto room = static_cast<int64_t>(bytes.size() - sizeof header);
  if (header.list_bytes < 0 || header.list_bytes > room) return refuse("is damaged");
  const auto list = bytes.subspan(sizeof header, static_cast<size_t>(header.list_bytes));
  if (std::memcmp(header.digest, digest_of(list).data(), kDigestDigits) != 0) return refuse("is damaged");
  // What the digest covers was written by this program.
  const Json json = Json::parse(reinterpret_cast<const char*>(list.data()), reinterpret_cast<const char*>(list.data()) + list.size());
  if (json["key"] != key_) return refuse("is of another version or of other options of weights");
  std::vector<Source> stored;
  for (const Json& source : json["sources"]) stored.push_back({source["file"], source["digest"], source["bytes"], source["time"]});
  if (!is_current(stored)) return refuse("is of other weights");
  std::vector<std::pair<std::string, Entry>> entries;
  for (const char* kind : {"arrays", "prepared"}) {
    for (const Json& item : json[kind]) {
      const Entry entry{item["offset"], item["bytes"], item["type"], item["digest"]};
      if (entry.offset < 0 || entry.bytes < 0 || entry.offset > std::ssize(bytes) - entry.bytes) return refuse("is damaged");
      (kind == std::string_view("arrays") ? arrays_ : prepared_).emplace(item["name"], entry);
      entries.emplace_back(item["name"], entry);
    }
  }
  std::vector<char> damaged(entries.size());
  parallel_for(std::ssize(entries), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Entry& entry = entries[i].second;
      damaged[i] = digest_of(bytes.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.bytes))) != entry.digest;
    }
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    if (damaged[i] != 0) return refuse(cat("is damaged in ", entries[i].first));
  }
  sources_ = std::move(stored);
  file_ = file;
}

bool PackedWeights::adopt(const Program& program, ParameterStore& store) {
  if (file_ == nullptr) return false;
  const Graph& graph = program.graph();
  std::vector<std::pair<const ValueInfo*, const Entry*>> found;
  for (const ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role != ValueRole::kParameter && info.role != ValueRole::kBuffer) continue;
    const auto entry = arrays_.find(info.name);
    if (entry == arrays_.end() || entry->second.type != info.type.str()) {
      refuse(cat("has no ", info.name, " as ", info.type));
      return false;
    }
    found.emplace_back(&info, &entry->second);
  }
  for (const auto& [info, entry] : found) {
    const std::byte* data = file_->bytes().data() + entry->offset;
    store.adopt(info->name, Tensor(info->type.dtype, info->type.shape, info->type.format, Storage::borrow(data, entry->bytes, file_)));
  }
  return true;
}

void PackedWeights::adopt_prepared(Execution& execution) {
  if (file_ == nullptr || execution.program().prepared_bytes() == 0) return;
  const auto entry = prepared_.find(prepare_key(execution.program()));
  if (entry == prepared_.end() || entry->second.bytes != execution.program().prepared_bytes()) return;
  execution.adopt_prepared(Storage::borrow(file_->bytes().data() + entry->second.offset, entry->second.bytes, file_));
}

void PackedWeights::keep_prepared(const Execution& execution) {
  const std::span<const std::byte> values = execution.prepared();
  if (values.empty()) return;
  const std::string key = prepare_key(execution.program());
  if (prepared_.contains(key) || new_values_.contains(key)) return;
  new_values_.emplace(key, std::vector<std::byte>(values.begin(), values.end()));
}

void PackedWeights::write(const ParameterStore& store) {
  if (!outdated_ && new_values_.empty()) return;
  try {
    struct Block {
      std::string name, type;
      std::span<const std::byte> bytes;
    };
    std::vector<Block> arrays, prepared;
    for (const std::string& name : store.names()) {
      const Tensor& tensor = store.tensor(name);
      TensorType type{.dtype = tensor.dtype(), .shape = tensor.shape()};
      type.format = tensor.format();
      arrays.push_back({name, type.str(), bytes_of(tensor)});
    }
    for (const auto& [key, entry] : prepared_)
      prepared.push_back({key, "", file_->bytes().subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.bytes))});
    for (const auto& [key, values] : new_values_) prepared.push_back({key, "", values});
    Json json;
    json["key"] = key_;
    json["sources"] = Json::array();
    for (const WeightsParent& parent : weights_parents(from_)) {
      const auto [bytes, time] = state_of(parent.file);
      json["sources"].push_back({{"file", parent.file}, {"digest", parent.digest}, {"bytes", bytes}, {"time", time}});
    }
    // The length of the list depends on the offsets, which are counted from a page after it: all numbers take the room of the largest.
    int64_t offset = 0;
    for (const auto& [kind, blocks] : {std::pair{"arrays", &arrays}, {"prepared", &prepared}}) {
      json[kind] = Json::array();
      for (const Block& block : *blocks) {
        json[kind].push_back({{"name", block.name},
                              {"type", block.type},
                              {"offset", offset},
                              {"bytes", block.bytes.size()},
                              {"digest", digest_of(block.bytes)}});
        offset = aligned(offset + std::ssize(block.bytes));
      }
    }
    constexpr int64_t kDigits = 20;  // of a number of 64 bits
    const int64_t first = aligned(static_cast<int64_t>(sizeof(Header)) + std::ssize(json.dump()) + kDigits * std::ssize(arrays) +
                                  kDigits * std::ssize(prepared));
    for (const char* kind : {"arrays", "prepared"}) {
      for (Json& item : json[kind]) item["offset"] = item["offset"].get<int64_t>() + first;
    }
    const std::string list = json.dump();
    Header header{};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    std::memcpy(header.digest, digest_of(list).data(), kDigestDigits);
    header.list_bytes = std::ssize(list);
    OutputFile file(path_);
    file.write(std::as_bytes(std::span(&header, 1)));
    file.write(list);
    int64_t at = static_cast<int64_t>(sizeof header) + std::ssize(list);
    const std::string zeros(static_cast<size_t>(first > kAlignment ? first : kAlignment), '\0');
    const auto fill = [&](int64_t to) {
      file.write(std::string_view(zeros).substr(0, static_cast<size_t>(to - at)));
      at = to;
    };
    fill(first);
    for (const std::vector<Block>* blocks : {&arrays, &prepared}) {
      for (const Block& block : *blocks) {
        file.write(block.bytes);
        at += std::ssize(block.bytes);
        fill(aligned(at));
      }
    }
    file.finish();
    log(LogLevel::kInfo, cat("wrote ", path_, ", which the next start maps"));
    outdated_ = false;
    new_values_.clear();
  } catch (const Error& error) {
    log(LogLevel::kWarning, cat("the packed weights are not kept for the next start: ", error.message()));
  }
}

}  // namespace galley
