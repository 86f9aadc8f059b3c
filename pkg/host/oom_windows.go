package host

import "context"

// WatchOOM returns immediately: Windows does not kill processes when memory runs out.
func WatchOOM(context.Context, func(Victim)) error { return nil }
