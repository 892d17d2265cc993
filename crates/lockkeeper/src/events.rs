//! What happened to the server and its clients, as operators read it.
//! [`Control::events`](crate::Control::events) returns [`Events`].

pub use server::Events;
pub use server::event_log::{EventGap, LoggedEvent};
pub use server::event_text::{ClientLabel, EventText, Level};
