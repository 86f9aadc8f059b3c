package main

import (
	"context"
	"errors"
	"io"
)

func proxyCommands() map[string]func([]string) error { return nil }

func proxyBench(context.Context, string, []string, io.Writer, []string) error {
	return errors.New("the service proxy can be measured on Linux only")
}

func networkBench(context.Context, string, io.Writer) error {
	return errors.New("the path between nodes can be measured on Linux only")
}
