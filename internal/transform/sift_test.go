package transform
