"""What tests share: data, programs, independent definitions, comparisons."""
