#include "libcore/runtime/engine.h"

#include <atomic>
#include <chrono>

#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/runtime/compile.h"

namespace galley {
namespace {

std::atomic<bool> logs{false};

bool is_stored(ValueRole role) { return role == ValueRole::kParameter || role == ValueRole::kBuffer || role == ValueRole::kState; }

}  // namespace

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
                                               ParameterFormats formats) {
  const std::string text = key.str();
  std::shared_ptr<const Program>& program = programs_[text];
  if (program != nullptr) return program;
  GALLEY_ASSERT(formats == ParameterFormats::kFollow || compilations_.empty(), text, " is to lead, but ", compilations_.front().program,
                " was compiled before");
  const auto began = std::chrono::steady_clock::now();
  program = compile(capture(), {.backend = backend_, .parameter_formats = formats_});
  const Graph& graph = program->graph();
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (is_stored(info.role)) formats_.try_emplace(info.name, info.type.format);
  }
  compilations_.push_back({text, std::string(reason), std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count()});
  if (logs) log(LogLevel::kRequested, cat("compiled ", text, " in ", human_seconds(compilations_.back().seconds), ": ", reason));
  return program;
}

void Engine::follow_store() {
  for (const auto& [name, format] : store_.formats()) formats_.insert_or_assign(name, format);
}

std::unique_ptr<Execution> Engine::bind(std::shared_ptr<const Program> program, Binding binding) {
  return std::make_unique<Execution>(std::move(program), store_, binding.arena ? std::move(binding.arena) : arena_,
                                     std::move(binding.names), std::move(binding.carried));
}

}  // namespace galley
