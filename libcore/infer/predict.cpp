#include "libcore/infer/predict.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "libcore/base/parallel.h"
#include "libcore/data/loader.h"
#include "libcore/infer/inference.h"
#include "libcore/runtime/engine.h"

namespace galley {

std::vector<std::string> unreadable_start(const Source& source, const std::vector<Component>& pipeline) {
  const Pipeline items(items_for(pipeline, source.fields()));
  std::vector<std::string> reasons;
  for (int64_t index = 0; index < source.size(); ++index) {
    try {
      Sample sample = source.read(index);
      items.apply(sample, {0, 0, index});
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInput) throw;
      reasons.push_back(error.message());
    }
  }
  return reasons;
}

Predictor::Predictor(Session& session, std::shared_ptr<const Source> source, const std::vector<Component>& pipeline, PredictOptions options)
    : session_(session), source_(std::move(source)), pipeline_(items_for(pipeline, source_->fields())), options_(std::move(options)) {
  GALLEY_CHECK_INPUT(source_->size() > 0, source_->describe(), ": nothing to predict");
  const int64_t fixed = session.info().fixed_batch;
  options_.batch = fixed > 0 ? fixed : std::clamp<int64_t>(options_.batch, 1, source_->size());
  const int64_t batches = (source_->size() + options_.batch - 1) / options_.batch;
  options_.replicas = std::clamp<int64_t>(options_.replicas, 1, std::min(batches, session.threads()));
  // A device stream accepts work from one host thread only. The host's stream runs work in the calling thread.
  if (&session.backend()->device() != &host_device()) options_.replicas = 1;
  threads_ = session.threads() / options_.replicas;

  const std::unique_ptr<DataLoader> first = loader();
  data_bytes_ = first->buffer_bytes();
  batch_types_ = session.all_batch_types(*first);
  sample_shape_ = batch_types_.front().sample();
  engine_ = std::make_unique<Engine>(session.backend(static_cast<int>(threads_)));
  program_ = compile(batch_types_.front());
  engine_->declare(*program_);
}

std::shared_ptr<const Program> Predictor::compile(const BatchTypes& types) {
  InferenceModel model = inference_model(session_, types, loaded_plan(session_.recipe()), options_.capture);
  if (outputs_.empty()) {
    for (const auto& [name, id] : model.graph.outputs()) {
      outputs_.push_back(name);
      types_.push_back(model.graph.type(id));
    }
    parameters_ = std::move(model.parameters);
  }
  return engine_->program(
      {.mode = "predict", .variant = cat(options_.capture.empty() ? "" : "captured", pixels_text(types)), .fields = types.fields},
      "prediction", [&] { return std::move(model.graph); }, engine_->has_formats() ? ParameterFormats::kFollow : ParameterFormats::kLead);
}

size_t Predictor::size_of(const Batch& batch) const {
  const std::string& input = batch_types_.front().inputs.front();
  size_t number = 0;
  while (number < batch_types_.size() && !(batch_types_[number].fields.at(input).shape == batch.at(input).shape())) ++number;
  GALLEY_ASSERT(number < batch_types_.size(), "no program for images ", batch.at(input).shape());
  return number;
}

std::unique_ptr<Execution> Predictor::bind(size_t size, const std::shared_ptr<Arena>& arena) {
  const std::lock_guard lock(engine_mutex_);
  const std::shared_ptr<const Program> program = size == 0 ? program_ : compile(batch_types_[size]);
  return engine_->bind(program, {.arena = arena});
}

Predictor::~Predictor() = default;

std::unique_ptr<DataLoader> Predictor::loader() const {
  LoaderOptions loader_options;
  loader_options.order.shuffle = false;
  loader_options.order.last_batch = LastBatchRule::kKeep;
  loader_options.order.batch = options_.batch;
  loader_options.workers = std::min<int64_t>(session_.threads(), 4);
  loader_options.on_error = options_.keep_going ? OnErrorRule::kReport : OnErrorRule::kFail;
  loader_options.format = session_.layout() == LayoutMode::kContiguous ? MemoryFormat::contiguous() : MemoryFormat::channels_last();
  loader_options.passes = 1;
  loader_options.bytes = session_.takes_bytes();
  loader_options.fit = options_.capture.empty();  // results of modules have one shape
  return std::make_unique<DataLoader>(source_, Pipeline(pipeline_), std::vector<Component>(), loader_options);
}

int64_t Predictor::planned_bytes() const {
  const int64_t replica = program_->scratch_bytes() + program_->prepared_bytes() + program_->feed_bytes();
  return program_->persistent_bytes() + options_.replicas * replica + data_bytes_;
}

/// Replicas that take batches from one loader and deliver results in order. The mutex protects all members; runs are outside of it.
struct Predictor::Crew {
  explicit Crew(Predictor& owner) : predictor(owner), data(owner.loader()) {}

  void start() {
    for (int64_t i = 0; i < predictor.options_.replicas; ++i) threads.emplace_back([this] { work(); });
  }
  ~Crew() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  /// Takes the next batch in order; returns false at the end. Rethrows the error of its replica.
  bool next(PredictedBatch& batch) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return finished.contains(delivered) || (ended && delivered == begun); });
    const auto found = finished.find(delivered);
    if (found == finished.end()) return false;
    if (found->second.error) std::rethrow_exception(found->second.error);
    batch = std::move(found->second.batch);
    finished.erase(found);
    ++delivered;
    changed.notify_all();
    return true;
  }

 private:
  struct Result {
    PredictedBatch batch;
    std::exception_ptr error;
  };

  void work() {
    const ThreadShare share(static_cast<int>(predictor.threads_));
    // Replicas share the parameters; each has its own scratch memory.
    const auto arena = std::make_shared<Arena>(predictor.program_->device());
    std::map<size_t, std::unique_ptr<Execution>> executions;  // by size of images
    while (true) {
      Batch inputs;
      Result result;
      int64_t number = 0;
      {
        std::unique_lock lock(mutex);
        // Results are delivered in order, so limit how far replicas run ahead.
        changed.wait(lock, [&] { return stop || ended || begun < delivered + 2 * predictor.options_.replicas; });
        if (stop || ended) return;
        number = begun;
        try {
          const Batch* batch = data->next();
          if (batch == nullptr) {
            ended = true;
            lock.unlock();
            changed.notify_all();
            return;
          }
          inputs.fields = batch->fields;
          for (auto& [name, tensor] : inputs.fields) tensor = tensor.clone();  // the loader reuses its tensors
          result.batch.indices = batch->indices;
          result.batch.unreadable = batch->unreadable;
          result.batch.irregular = batch->irregular;
        } catch (const std::exception&) {
          result.error = std::current_exception();
          ended = true;
        }
        ++begun;
      }
      if (!result.error) {
        try {
          std::unique_ptr<Execution>& execution = executions[predictor.size_of(inputs)];
          if (!execution) execution = predictor.bind(predictor.size_of(inputs), arena);
          feed_fields(*execution, inputs);
          execution->run();
          for (const std::string& name : predictor.outputs_) result.batch.outputs.push_back(execution->output(name));
        } catch (const std::exception&) {
          result.error = std::current_exception();
        }
      }
      {
        const std::lock_guard lock(mutex);
        finished.emplace(number, std::move(result));
      }
      changed.notify_all();
    }
  }

  Predictor& predictor;
  std::unique_ptr<DataLoader> data;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, Result> finished;  // by number of the batch
  int64_t begun = 0, delivered = 0;
  bool ended = false, stop = false;
  std::vector<std::thread> threads;
};

void Predictor::run(const std::function<void(const PredictedBatch&)>& take) {
  Crew crew(*this);
  crew.start();
  PredictedBatch batch;
  while (crew.next(batch)) take(batch);
}

}  // namespace galley
