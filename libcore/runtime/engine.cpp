#include "libcore/runtime/engine.h"

#include <atomic>
#include <chrono>

#include "libcore/base/log.h"
#include "libcore/base/resident_memory.h"
#include "libcore/base/units.h"
#include "libcore/runtime/compile.h"

namespace galley {
namespace {

std::atomic<bool> logs{false};

bool is_stored(ValueRole role) { return role == ValueRole::kParameter || role == ValueRole::kBuffer || role == ValueRole::kState; }

}  // namespace

/// Marks a call for its lifetime. This is not a lock: overlapping calls are a bug of the caller.
class Engine::Use {
 public:
  Use(std::atomic<int>& users, bool alone) : users_(users), alone_(alone) {
    int found = 0;
    const bool fits = alone ? users_.compare_exchange_strong(found, -1) : enter_beside_readers();
    GALLEY_ASSERT(
        fits, "two threads use one engine at the same time; only `bind` may overlap, with a declared program and an arena for each call");
  }
  ~Use() { alone_ ? users_.store(0) : static_cast<void>(users_.fetch_sub(1)); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  bool enter_beside_readers() {
    int found = users_.load();
    while (found >= 0) {
      if (users_.compare_exchange_weak(found, found + 1)) return true;
    }
    return false;
  }

  std::atomic<int>& users_;
  bool alone_;
};

void set_compile_log(bool on) { logs = on; }

std::string ProgramKey::str() const {
  std::string text = mode;
  if (!variant.empty()) text += " " + variant;
  bool first = true;
  for (const auto& [name, type] : fields) {
    text += cat(first ? " " : ", ", name, " ", type);
    first = false;
  }
  return text;
}

Engine::Engine(std::shared_ptr<const Backend> backend)
    : backend_(std::move(backend)), store_(backend_->device()), arena_(std::make_shared<Arena>(backend_->device())) {}

std::shared_ptr<const Program> Engine::program(const ProgramKey& key, std::string_view reason, const std::function<Graph()>& capture,
                                               ParameterFormats formats, std::shared_ptr<const Backend> backend) {
  const Use use(users_, true);
  const std::string text = key.str();
  std::shared_ptr<const Program>& program = programs_[text];
  if (program != nullptr) return program;
  if (formats == ParameterFormats::kLead) {
    GALLEY_ASSERT(compilations_.empty(), text, " must lead, but ", compilations_.front().program, " was compiled earlier");
  } else {
    GALLEY_ASSERT(has_formats_, text, " must follow existing formats, but no program has led and follow_store was not called");
  }
  const auto began = std::chrono::steady_clock::now();
  program = compile(capture(), {.backend = backend ? std::move(backend) : backend_, .parameter_formats = formats_});
  has_formats_ = true;
  const Graph& graph = program->graph();
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (is_stored(info.role)) formats_.try_emplace(info.name, info.type.format);
  }
  compilations_.push_back({text, std::string(reason), std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count()});
  if (logs) log(LogLevel::kRequested, cat("compiled ", text, " in ", human_seconds(compilations_.back().seconds), ": ", reason));
  return program;
}

void Engine::declare(const Program& program) {
  const Use use(users_, true);
  store_.declare(program);
}

void Engine::follow_store() {
  const Use use(users_, true);
  has_formats_ = true;
  for (const auto& [name, format] : store_.formats()) formats_.insert_or_assign(name, format);
}

std::unique_ptr<Execution> Engine::bind(std::shared_ptr<const Program> program, BindOptions options) {
  const bool changes_nothing = options.arena != nullptr && store_.holds(*program, options.names);
  const Use use(users_, !changes_nothing);
  return std::make_unique<Execution>(std::move(program), store_, options.arena ? std::move(options.arena) : arena_,
                                     std::move(options.names), std::move(options.carried));
}

int64_t Engine::peak_bytes() const {
  const int64_t own = backend_->device().memory().peak_bytes();
  return own > 0 ? own : peak_resident_bytes();
}

}  // namespace galley
