#pragma once
// Chat templates: an interpreter of the subset of Jinja (jinja_parse.h) that they use, with the functions that transformers adds:
// raise_exception, strftime_now, and a tojson that escapes nothing. What it does not know is an error with its line.

#include <memory>
#include <string>
#include <string_view>

#include "libcore/text/jinja_value.h"

namespace galley::text::jinja {

class Template {
 public:
  /// Throws Error (kInput) at NAME:LINE for what is not in the subset.
  Template(std::string_view source, std::string name);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  /// The text for these variables. Throws Error (kInput) with the line: for a mistake, and with its message for raise_exception.
  std::string render(const Dict& variables) const;

 private:
  struct Body;
  std::unique_ptr<const Body> body_;
};

// ---- for jinja.cpp

/// Filters and tests that take an expression's value and arguments; throw without a place, also for an unknown name.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
/// The method of a text or dictionary; undefined if there is none.
Value method_of(const Value& value, const std::string& name);
/// range, dict, namespace, raise_exception, strftime_now.
Dict global_functions();

}  // namespace galley::text::jinja
