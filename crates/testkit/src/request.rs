//! A builder of HTTP requests to the gateway.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::PATIENCE;
use crate::reply::Reply;

/// A POST request with the content type `application/json`. Nothing is sent before [`send`](Self::send).
#[derive(Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct TestRequest {
    client: reqwest::Client,
    base_url: String,
    path: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl TestRequest {
    pub(crate) fn new(client: &reqwest::Client, base_url: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        let (client, base_url, path) = (client.clone(), base_url.to_owned(), "/v3/dev".to_owned());
        Self { client, base_url, path, headers, body: body.into() }
    }

    /// Sets the API key in the path. The default is `dev`.
    pub fn key(self, key: &str) -> Self {
        self.path(&format!("/v3/{key}"))
    }

    /// Sets the path. The default is `/v3/dev`.
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Sets the HTTP client. The default is [`TestGateway::client`](crate::TestGateway::client).
    pub fn client(mut self, client: &reqwest::Client) -> Self {
        self.client = client.clone();
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().expect("the name of a header field");
        self.headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("the value of a field"));
        self
    }

    pub fn headers(self, headers: &[(&str, &str)]) -> Self {
        headers.iter().fold(self, |request, (name, value)| request.header(name, value))
    }

    /// Adds `Cache-Control: no-cache`, so that the call bypasses the cache if the key's plan allows this.
    pub fn no_cache(self) -> Self {
        self.header("cache-control", "no-cache")
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Returns the request as the HTTP client takes it, without sending it.
    pub fn build(&self) -> reqwest::RequestBuilder {
        let url = format!("{}{}", self.base_url, self.path);
        self.client.post(url).headers(self.headers.clone()).body(self.body.clone())
    }

    /// Sends the request, and reads the whole reply. A request can be sent several times.
    pub fn send(&self) -> impl Future<Output = Reply> + use<> {
        let request = self.build().timeout(PATIENCE);
        async move { Reply::read(request.send().await.expect("an answer")).await }
    }

    /// Sends the request three times: over HTTP/1.1, over HTTP/1.1 by a browser, and over HTTP/2.
    pub async fn send_every_way(&self) -> [Reply; 3] {
        let multiplexed = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build();
        let multiplexed = multiplexed.expect("a client");
        [
            self.send().await,
            self.clone().header("origin", "https://app.example").send().await,
            self.clone().client(&multiplexed).send().await,
        ]
    }
}
