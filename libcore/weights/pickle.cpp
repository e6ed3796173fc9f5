#include "libcore/weights/pickle.h"

#include <algorithm>
#include <array>
#include <map>

#include "libcore/base/error.h"
#include "libcore/weights/pickle_globals.h"

namespace galley {
namespace {

using Kind = PickleValue::Kind;
using Values = std::vector<PickleValue>;

constexpr int64_t kGlobalNameLimit = 256;  // limit in bytes of the name of a module or global
enum DictTag : uint8_t { kPlain, kOrdered, kNamespace };

std::string_view kind_name(Kind kind) {
  constexpr std::array<std::string_view, 15> kNames{"None",         "a boolean",      "an integer", "a number",  "a string",
                                                    "bytes",        "a long integer", "a list",     "a tuple",   "a set",
                                                    "a dictionary", "a global",       "a type",     "a storage", "a tensor"};
  return kNames[static_cast<size_t>(kind)];
}

/// A name from a file with unprintable characters replaced.
std::string printable(std::string_view text) {
  std::string shown;
  for (const char letter : text.substr(0, 2 * kGlobalNameLimit)) shown += letter >= 0x20 && letter < 0x7f ? letter : '?';
  return shown;
}

/// Values store types as indices into the table of types; -1 is not a type.
int64_t index_of(const TorchType* type) { return type == nullptr ? -1 : type - torch_types().data(); }
const TorchType* type_at(int64_t index) { return index < 0 ? nullptr : &torch_types()[static_cast<size_t>(index)]; }

class Interpreter {
 public:
  Interpreter(std::span<const std::byte> file, int64_t begin, const PickleLimits& limits) : limits_(limits), at_(begin) {
    pickle_.file = file;
  }

  Pickle run() {
    refuse_unless(left() >= 2 && byte_at(at_) == 0x80, "does not begin with a protocol number, as PyTorch's pickles do");
    int64_t count = 0;
    bool first = true;
    for (;;) {
      refuse_unless(left() > 0, "is truncated: it ends without STOP");
      refuse_unless(++count <= limits_.opcodes, "has more than ", limits_.opcodes, " opcodes");
      opcode_at_ = at_;
      const uint8_t opcode = byte_at(at_++);
      if (opcode == '.') break;
      refuse_unless((opcode == 0x80) == first, "has a protocol number that is not at its beginning");
      first = false;
      step(opcode);
      refuse_unless(static_cast<int64_t>(stack_.size()) <= limits_.stack, "holds more than ", limits_.stack, " values on its stack");
    }
    refuse_unless(stack_.size() == 1 && marks_.empty(), "ends with ", stack_.size(), " values instead of one");
    pickle_.root = stack_.back();
    pickle_.end = at_;
    return std::move(pickle_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    fail(ErrorCode::kInput, "the pickle, at byte ", opcode_at_, ", ", why...);
  }
  template <class... Parts>
  void refuse_unless(bool condition, const Parts&... why) const {
    if (!condition) refuse(why...);
  }

  int64_t left() const { return static_cast<int64_t>(pickle_.file.size()) - at_; }
  uint8_t byte_at(int64_t at) const { return static_cast<uint8_t>(pickle_.file[static_cast<size_t>(at)]); }
  uint64_t number(int count) {
    refuse_unless(left() >= count, "is truncated inside a number");
    uint64_t value = 0;
    for (int i = 0; i < count; ++i) value |= static_cast<uint64_t>(byte_at(at_ + i)) << (8 * i);
    at_ += count;
    return value;
  }
  PickleValue text(Kind kind, uint64_t length) {
    refuse_unless(length <= static_cast<uint64_t>(left()), "is truncated: a string is longer than the file");
    refuse_unless(length <= static_cast<uint64_t>(limits_.text), "has a string that is too long for a weights file");
    const PickleValue value{kind, 0, static_cast<uint32_t>(length), at_};
    at_ += static_cast<int64_t>(length);
    return value;
  }
  std::string_view line() {
    const int64_t begin = at_;
    while (left() > 0 && at_ - begin <= kGlobalNameLimit && byte_at(at_) != '\n') ++at_;
    refuse_unless(left() > 0, "is truncated inside a name");
    refuse_unless(byte_at(at_) == '\n', "has a name that is too long");
    return {reinterpret_cast<const char*>(pickle_.file.data()) + begin, static_cast<size_t>(at_++ - begin)};
  }

  void push(PickleValue value) { stack_.push_back(value); }
  void push_int(int64_t value) { push({Kind::kInt, 0, 0, value}); }
  /// Only values above the innermost mark may be taken; those below belong to incomplete objects.
  PickleValue pop() {
    refuse_unless(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "pops a value from an empty stack");
    const PickleValue value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    refuse_unless(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "pops a value from an empty stack");
    return stack_.back();
  }
  Values pop_to_mark() {
    refuse_unless(!marks_.empty(), "closes a list that was not opened");
    Values values(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }
  Values pop_count(size_t count) {
    Values values(count);
    for (size_t i = count; i > 0; --i) values[i - 1] = pop();
    return values;
  }
  /// Limits the values in containers too, because a call that copies a list could otherwise multiply them.
  void charge(size_t values) {
    held_ += static_cast<int64_t>(values);
    refuse_unless(held_ <= limits_.opcodes, "holds more than ", limits_.opcodes, " values");
  }
  PickleValue container(Kind kind, Values values, uint8_t tag = 0) {
    charge(values.size());
    refuse_unless(static_cast<int64_t>(pickle_.containers.size()) < limits_.containers, "holds more than ", limits_.containers,
                  " lists and dictionaries");
    pickle_.containers.push_back(std::move(values));
    return {kind, tag, 0, static_cast<int64_t>(pickle_.containers.size()) - 1};
  }
  static PickleGlobal global_of(const PickleValue& value) { return static_cast<PickleGlobal>(value.tag); }
  Values& items(const PickleValue& value) { return pickle_.containers[static_cast<size_t>(value.number)]; }

  void store(int64_t place) {
    refuse_unless(place < limits_.memo, "stores more than ", limits_.memo, " values in its memo");
    if (place >= static_cast<int64_t>(memo_.size())) {
      memo_.resize(static_cast<size_t>(place) + 1);
      known_.resize(memo_.size(), false);
    }
    memo_[static_cast<size_t>(place)] = top();
    stored_ += known_[static_cast<size_t>(place)] ? 0 : 1;
    known_[static_cast<size_t>(place)] = true;
  }
  void recall(int64_t place) {
    refuse_unless(place < static_cast<int64_t>(memo_.size()) && known_[static_cast<size_t>(place)], "reads value ", place,
                  " of its memo, which it has not stored");
    push(memo_[static_cast<size_t>(place)]);
  }

  void step(uint8_t opcode);
  bool push_literal(uint8_t opcode);
  void push_long();
  void push_double();
  bool build_container(uint8_t opcode);
  void global(std::string_view module, std::string_view name);
  void call(const PickleValue& callee, const PickleValue& arguments);
  void create();
  void build();
  void set_items(const Values& pairs);
  void add_items(Kind kind, const Values& values);
  void storage(const PickleValue& id);
  void tensor(const Values& parts, const TorchType* type);
  int64_t size_of(const PickleValue& value, std::string_view what) const;
  Shape shape_of(const PickleValue& value, std::string_view what) const;

  Pickle pickle_;
  PickleLimits limits_;
  int64_t at_ = 0;
  int64_t opcode_at_ = 0;
  Values stack_;
  std::vector<size_t> marks_;
  Values memo_;
  std::vector<bool> known_;
  int64_t stored_ = 0;
  int64_t held_ = 0;
  std::vector<const TorchType*> storage_types_;  // type of each storage; null: untyped
  std::map<std::string, size_t, std::less<>> storage_of_key_;
};

/// Handles opcodes that push a literal value; returns false for other opcodes.
bool Interpreter::push_literal(uint8_t opcode) {
  switch (opcode) {
    case 'N': push({}); return true;
    case 0x88: push({Kind::kBool, 0, 0, 1}); return true;
    case 0x89: push({Kind::kBool, 0, 0, 0}); return true;
    case 'J': push_int(static_cast<int32_t>(static_cast<uint32_t>(number(4)))); return true;  // BININT
    case 'K': push_int(static_cast<int64_t>(number(1))); return true;
    case 'M': push_int(static_cast<int64_t>(number(2))); return true;
    case 0x8a: push_long(); return true;                         // LONG1
    case 'G': push_double(); return true;                        // BINFLOAT
    case 'X': push(text(Kind::kText, number(4))); return true;   // BINUNICODE
    case 0x8c: push(text(Kind::kText, number(1))); return true;  // SHORT_BINUNICODE
    case 0x8d: push(text(Kind::kText, number(8))); return true;  // BINUNICODE8
    case 'U': push(text(Kind::kText, number(1))); return true;   // SHORT_BINSTRING: strings of Python 2
    case 'T': push(text(Kind::kText, number(4))); return true;   // BINSTRING
    case 'B': push(text(Kind::kBytes, number(4))); return true;
    case 'C': push(text(Kind::kBytes, number(1))); return true;
    case 0x8e:  // BINBYTES8, BYTEARRAY8
    case 0x96: push(text(Kind::kBytes, number(8))); return true;
    default: return false;
  }
}

/// Little-endian two's complement; numbers of more than eight bytes stay as bytes.
void Interpreter::push_long() {
  const PickleValue digits = text(Kind::kLong, number(1));
  if (digits.length > 8) return push(digits);
  uint64_t value = digits.length > 0 && (byte_at(at_ - 1) & 0x80) ? ~uint64_t{0} : 0;
  for (int64_t i = digits.length; i > 0; --i) value = value << 8 | byte_at(digits.number + i - 1);
  push_int(static_cast<int64_t>(value));
}

/// Pushes a double stored as eight big-endian bytes.
void Interpreter::push_double() {
  refuse_unless(left() >= 8, "is truncated inside a number");
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits = bits << 8 | byte_at(at_ + i);
  at_ += 8;
  push({Kind::kFloat, 0, 0, static_cast<int64_t>(bits)});
}

/// Handles opcodes that create or extend a list, tuple, set or dictionary; returns false for other opcodes.
bool Interpreter::build_container(uint8_t opcode) {
  switch (opcode) {
    case ']': push(container(Kind::kList, {})); return true;
    case '}': push(container(Kind::kDict, {})); return true;
    case ')': push(container(Kind::kTuple, {})); return true;
    case 0x8f: push(container(Kind::kSet, {})); return true;
    case 0x85: push(container(Kind::kTuple, pop_count(1))); return true;
    case 0x86: push(container(Kind::kTuple, pop_count(2))); return true;
    case 0x87: push(container(Kind::kTuple, pop_count(3))); return true;
    case 't': push(container(Kind::kTuple, pop_to_mark())); return true;
    case 'l': push(container(Kind::kList, pop_to_mark())); return true;
    case 0x91: push(container(Kind::kSet, pop_to_mark())); return true;  // FROZENSET
    case 'a': add_items(Kind::kList, pop_count(1)); return true;
    case 'e': add_items(Kind::kList, pop_to_mark()); return true;
    case 0x90: add_items(Kind::kSet, pop_to_mark()); return true;
    case 's': set_items(pop_count(2)); return true;
    case 'u': set_items(pop_to_mark()); return true;
    default: return false;
  }
}

void Interpreter::step(uint8_t opcode) {
  if (push_literal(opcode) || build_container(opcode)) return;
  switch (opcode) {
    case 0x80: {  // PROTO
      const uint64_t protocol = number(1);
      refuse_unless(protocol >= 2 && protocol <= 5, "has protocol ", protocol, ", but only 2 to 5 are supported");
      return;
    }
    case 0x95: {  // FRAME: number of bytes that a reader may prefetch
      refuse_unless(number(8) <= static_cast<uint64_t>(left()), "is truncated: a frame is longer than the file");
      return;
    }
    case '(':  // MARK
      refuse_unless(static_cast<int64_t>(marks_.size()) < limits_.marks, "nests more than ", limits_.marks, " levels deep");
      return marks_.push_back(stack_.size());
    case 'q': return store(static_cast<int64_t>(number(1)));
    case 'r': return store(static_cast<int64_t>(number(4)));
    case 0x94: return store(stored_);  // MEMOIZE: the index is the number of values stored so far
    case 'h': return recall(static_cast<int64_t>(number(1)));
    case 'j': return recall(static_cast<int64_t>(number(4)));
    case 'c': {
      const std::string_view module = line(), name = line();
      return global(module, name);
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleValue name = pop(), module = pop();
      refuse_unless(name.kind == Kind::kText && module.kind == Kind::kText, "names a global with values that are not strings");
      return global(pickle_.text(module), pickle_.text(name));
    }
    case 'R': {
      const PickleValue arguments = pop(), callee = pop();
      return call(callee, arguments);
    }
    case 0x81: return create();
    case 'b': return build();
    case 'Q': return storage(pop());  // BINPERSID
    default: break;
  }
  refuse("uses the opcode ", opcode_name(opcode), ", which weights files do not need");
}

void Interpreter::global(std::string_view module, std::string_view name) {
  if (const std::optional<KnownGlobal> known = known_global(module, name))
    return push({Kind::kGlobal, static_cast<uint8_t>(known->global), 0, index_of(known->type)});
  if (module == "torch" && type_of_name(name) != nullptr) return push({Kind::kType, 0, 0, index_of(type_of_name(name))});
  const std::string shown = printable(cat(module, ".", name));
  Error error(ErrorCode::kInput, cat("the pickle, at byte ", opcode_at_, ", refers to ", shown,
                                     ", which is not allowed in a weights file; nothing was executed"));
  throw error.suggest(advice_on_global(module, name));
}

/// Evaluates a call of one of the known callables, without executing Python.
void Interpreter::call(const PickleValue& callee, const PickleValue& arguments) {
  refuse_unless(callee.kind == Kind::kGlobal, "calls ", kind_name(callee.kind));
  refuse_unless(arguments.kind == Kind::kTuple, "makes a call whose arguments are ", kind_name(arguments.kind), " instead of a tuple");
  const PickleGlobal known = global_of(callee);
  refuse_unless(items(arguments).size() <= 8, "makes a call with ", items(arguments).size(), " arguments");
  const Values given = items(arguments);
  const auto check_count = [&](size_t least, size_t most) {
    refuse_unless(given.size() >= least && given.size() <= most, "makes a call with ", given.size(), " arguments instead of ", least);
  };
  const auto is = [&](size_t i, Kind kind) { return given.size() > i && given[i].kind == kind; };
  switch (known) {
    case PickleGlobal::kOrderedDict:
    case PickleGlobal::kCounter: {
      check_count(0, 1);
      if (given.empty()) return push(container(Kind::kDict, {}, kOrdered));
      if (is(0, Kind::kDict)) return push(container(Kind::kDict, items(given[0]), kOrdered));
      refuse_unless(is(0, Kind::kList), "creates a dictionary from ", kind_name(given[0].kind));
      push(container(Kind::kDict, {}, kOrdered));
      const Values pairs = items(given[0]);
      for (const PickleValue& pair : pairs) {
        refuse_unless((pair.kind == Kind::kList || pair.kind == Kind::kTuple) && items(pair).size() == 2,
                      "creates a dictionary from a list whose items are not pairs");
        set_items(items(pair));
      }
      return;
    }
    case PickleGlobal::kRebuildTensor: check_count(4, 4); return tensor(given, nullptr);
    case PickleGlobal::kRebuildTensorV2: check_count(6, 7); return tensor(given, nullptr);
    case PickleGlobal::kRebuildTensorV3: {
      check_count(7, 8);
      refuse_unless(is(6, Kind::kType), "creates a tensor of an unknown type");
      return tensor(given, type_at(given[6].number));
    }
    case PickleGlobal::kRebuildParameter:
    case PickleGlobal::kRebuildParameterState:
      check_count(known == PickleGlobal::kRebuildParameter ? 3 : 4, known == PickleGlobal::kRebuildParameter ? 3 : 4);
      refuse_unless(is(0, Kind::kTensor), "creates a parameter from ", kind_name(given[0].kind));
      return push(given[0]);
    case PickleGlobal::kSize:
      check_count(1, 1);
      refuse_unless(is(0, Kind::kTuple) || is(0, Kind::kList), "creates a size from ", kind_name(given[0].kind));
      return push(container(Kind::kTuple, items(given[0])));
    case PickleGlobal::kDevice:
      check_count(1, 2);
      refuse_unless(is(0, Kind::kText), "creates a device from ", kind_name(given[0].kind));
      return push(given[0]);
    case PickleGlobal::kEncode:
      check_count(1, 2);
      refuse_unless(is(0, Kind::kText) && (given.size() == 1 || (is(1, Kind::kText) && pickle_.text(given[1]) == "latin1")),
                    "encodes a value that is not a Latin-1 string");
      return push({Kind::kBytes, 0, given[0].length, given[0].number});
    case PickleGlobal::kSet:
      check_count(0, 1);
      refuse_unless(given.empty() || is(0, Kind::kList), "creates a set from a value that is not a list");
      return push(container(Kind::kSet, given.empty() ? Values() : items(given[0])));
    case PickleGlobal::kByteArray:
      check_count(1, 2);
      refuse_unless(is(0, Kind::kBytes) || is(0, Kind::kText), "creates bytes from ", kind_name(given[0].kind));
      return push({Kind::kBytes, 0, given[0].length, given[0].number});
    case PickleGlobal::kNamespace:
    case PickleGlobal::kStorageType:
    case PickleGlobal::kUntypedStorage: break;
  }
  refuse("calls a type that is not callable");
}

/// NEWOBJ: creates an empty dictionary or namespace.
void Interpreter::create() {
  const PickleValue arguments = pop(), type = pop();
  const bool known = type.kind == Kind::kGlobal && arguments.kind == Kind::kTuple && items(arguments).empty();
  const PickleGlobal global = known ? global_of(type) : PickleGlobal::kSize;
  if (known && global == PickleGlobal::kNamespace) return push(container(Kind::kDict, {}, kNamespace));
  if (known && (global == PickleGlobal::kOrderedDict || global == PickleGlobal::kCounter))
    return push(container(Kind::kDict, {}, kOrdered));
  refuse("creates an object of ", kind_name(type.kind), " (with arguments: ", kind_name(arguments.kind), ")");
}

/// BUILD: sets attributes. Those of an OrderedDict (a state_dict's `_metadata`) are ignored; those of a namespace become its items.
void Interpreter::build() {
  const PickleValue state = pop();
  const PickleValue target = top();
  refuse_unless(target.kind == Kind::kDict && target.tag != kPlain, "sets attributes of ", kind_name(target.kind));
  refuse_unless(state.kind == Kind::kDict, "sets attributes from ", kind_name(state.kind));
  if (target.tag != kNamespace) return;
  charge(items(state).size());
  items(target) = items(state);
}

void Interpreter::set_items(const Values& pairs) {
  const PickleValue target = top();
  refuse_unless(target.kind == Kind::kDict && target.tag != kNamespace, "sets an item of ", kind_name(target.kind));
  refuse_unless(pairs.size() % 2 == 0, "sets a key without a value");
  charge(pairs.size());
  Values& entries = items(target);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool key = i % 2 == 0;
    const Kind kind = pairs[i].kind;
    refuse_unless(!key || kind <= Kind::kLong || kind == Kind::kTuple, "has ", kind_name(kind), " as a key");
    entries.push_back(pairs[i]);
  }
}

void Interpreter::add_items(Kind kind, const Values& values) {
  const PickleValue target = top();
  refuse_unless(target.kind == kind, "appends to ", kind_name(target.kind), " as if it were ", kind_name(kind));
  charge(values.size());
  Values& list = items(target);
  list.insert(list.end(), values.begin(), values.end());
}

/// A persistent id: ("storage", type, key, location, elements, [view]).
void Interpreter::storage(const PickleValue& id) {
  refuse_unless(id.kind == Kind::kTuple, "has ", kind_name(id.kind), " as a persistent id, which must be a tuple");
  const Values& parts = items(id);
  refuse_unless(parts.size() >= 5 && parts.size() <= 6 && parts[0].kind == Kind::kText && pickle_.text(parts[0]) == "storage",
                "has a persistent id that is not for a storage");
  refuse_unless(parts.size() == 5 || parts[5].kind == Kind::kNone,
                "has a storage that is a view of another (a file of PyTorch 0.3 or older)");
  refuse_unless(parts[1].kind == Kind::kGlobal && parts[2].kind == Kind::kText && parts[3].kind == Kind::kText,
                "has a persistent id with parts of wrong types");
  const PickleGlobal global = global_of(parts[1]);
  refuse_unless(global == PickleGlobal::kStorageType || global == PickleGlobal::kUntypedStorage,
                "has a persistent id whose type is not a storage type");
  const TorchType* type = type_at(parts[1].number);
  const int64_t element_bytes = type == nullptr ? 1 : type->bytes;
  const int64_t elements = size_of(parts[4], "a storage");
  refuse_unless(elements <= INT64_MAX / element_bytes, "has a storage of ", elements, " elements, which is too large");
  const std::string_view key = pickle_.text(parts[2]);
  refuse_unless(!key.empty() && key.size() <= 64 && key.find_first_not_of("0123456789") == std::string_view::npos,
                "has a storage with the key '", printable(key), "' instead of a number");
  auto found = storage_of_key_.find(key);
  if (found == storage_of_key_.end()) {
    refuse_unless(static_cast<int64_t>(pickle_.storages.size()) < limits_.tensors, "has more than ", limits_.tensors, " storages");
    found = storage_of_key_.emplace(std::string(key), pickle_.storages.size()).first;
    pickle_.storages.push_back({std::string(key), elements * element_bytes, element_bytes});
    storage_types_.push_back(type);
  }
  const size_t index = found->second;
  refuse_unless(pickle_.storages[index].bytes == elements * element_bytes && storage_types_[index] == type, "has storage ", key,
                " twice with different sizes or types");
  push({Kind::kStorage, 0, 0, static_cast<int64_t>(index)});
}

void Interpreter::tensor(const Values& parts, const TorchType* type) {
  refuse_unless(parts[0].kind == Kind::kStorage, "creates a tensor from ", kind_name(parts[0].kind));
  refuse_unless(static_cast<int64_t>(pickle_.tensors.size()) < limits_.tensors, "has more than ", limits_.tensors, " tensors");
  PickleTensor tensor;
  tensor.storage = static_cast<size_t>(parts[0].number);
  const TorchType* stored = storage_types_[tensor.storage];
  tensor.type = type == nullptr ? stored : type;
  refuse_unless(tensor.type != nullptr && (stored == nullptr || stored == tensor.type),
                "creates a tensor whose type differs from its storage's");
  tensor.offset = size_of(parts[1], "an offset");
  tensor.shape = shape_of(parts[2], "a size");
  tensor.strides = shape_of(parts[3], "a stride");
  refuse_unless(tensor.shape.rank() == tensor.strides.rank(), "creates a tensor with ", tensor.shape.rank(), " sizes and ",
                tensor.strides.rank(), " strides");
  const int64_t held = pickle_.storages[tensor.storage].bytes / tensor.type->bytes;
  int64_t elements = 1, last = tensor.offset;
  bool fits = true, empty = false;
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) empty |= tensor.shape[axis] == 0;
  for (int axis = 0; axis < tensor.shape.rank() && !empty; ++axis) {
    int64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(elements, tensor.shape[axis], &elements) &&
           !__builtin_mul_overflow(tensor.shape[axis] - 1, tensor.strides[axis], &reach) && !__builtin_add_overflow(last, reach, &last);
  }
  refuse_unless(empty ? tensor.offset <= held : fits && last < held, "creates a tensor ", tensor.shape, " with strides ", tensor.strides,
                " from element ", tensor.offset, " of a storage that has only ", held);
  refuse_unless(empty || elements <= held, "creates a tensor ", tensor.shape, " from a storage that has ", held,
                " elements: tensors with repeated values (expand) are not supported");
  pickle_.tensors.push_back(tensor);
  push({Kind::kTensor, 0, 0, static_cast<int64_t>(pickle_.tensors.size()) - 1});
}

int64_t Interpreter::size_of(const PickleValue& value, std::string_view what) const {
  refuse_unless(value.kind == Kind::kInt && value.number >= 0, "has ", what, " that is not a non-negative integer");
  return value.number;
}

Shape Interpreter::shape_of(const PickleValue& value, std::string_view what) const {
  refuse_unless(value.kind == Kind::kTuple, "has ", what, " that is ", kind_name(value.kind));
  const Values& sizes = pickle_.items(value);
  refuse_unless(sizes.size() <= static_cast<size_t>(Shape::kMaxRank), "has a tensor of ", sizes.size(), " dimensions, but at most ",
                Shape::kMaxRank, " are supported");
  Shape shape;
  for (const PickleValue& size : sizes) shape.push_back(size_of(size, what));
  return shape;
}

}  // namespace

Pickle parse_pickle(std::span<const std::byte> file, int64_t begin, const PickleLimits& limits) {
  GALLEY_ASSERT(begin >= 0 && begin <= static_cast<int64_t>(file.size()));
  return Interpreter(file, begin, limits).run();
}

}  // namespace galley
