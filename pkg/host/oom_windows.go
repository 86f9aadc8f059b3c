package host

import "context"

// WatchOOM returns immediately: Windows ends no process when memory runs out.
func WatchOOM(context.Context, func(Victim)) error { return nil }
