package host

import "context"

// WatchOOM returns at once: Windows ends no process when memory runs out.
func WatchOOM(context.Context, func(Victim)) error { return nil }
